#include "monitor/state/forget.h"

#include <SQLiteCpp/SQLiteCpp.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/secret.h"

namespace specdec::monitor {

namespace {

void redact(Json& json) {
  if (json.is_string())
    json = without_secrets(json.get<std::string>());
  else if (json.is_structured())
    for (Json& part : json) redact(part);
}

// Redacts the URLs in a text. If the text is JSON, each of its strings is redacted separately, because JSON escapes are
// not part of a URL.
std::string redacted(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_structured()) return without_secrets(text);
  redact(json);
  return json.dump();
}

// Redacts `column` in every row of `table` in which this column contains a URL.
void redact_column(SQLite::Database& db, const std::string& table, const std::string& column) {
  std::vector<std::pair<int64_t, std::string>> changed;
  for (SQLite::Statement rows(db, "SELECT rowid, " + column + " FROM " + table + " WHERE instr(" + column + ", '://')");
       rows.executeStep();) {
    const std::string before = rows.getColumn(1).getString();
    if (std::string after = redacted(before); after != before)
      changed.emplace_back(rows.getColumn(0).getInt64(), std::move(after));
  }
  for (const auto& [id, after] : changed) {
    SQLite::Statement change(db, "UPDATE " + table + " SET " + column + " = ? WHERE rowid = ?");
    change.bind(1, after);
    change.bind(2, id);
    change.exec();
  }
}

}  // namespace

std::string without_secrets(const std::string& text) {
  const auto in_scheme = [](unsigned char c) { return std::isalnum(c) || c == '+'; };
  std::string out;
  size_t told = 0;
  for (size_t colon = text.find("://"); colon != std::string::npos;
       colon = text.find("://", std::max(told, colon + 3))) {
    size_t begin = colon, end = std::min(text.find_first_of(" \t\r\n", colon), text.size());
    while (begin > told && in_scheme(static_cast<unsigned char>(text[begin - 1]))) --begin;
    const std::string scheme = text.substr(begin, colon - begin);
    if (!scheme.ends_with("http") && !scheme.ends_with("https")) continue;
    // Trailing punctuation belongs to the sentence, not to the URL.
    while (end > colon + 3 && std::string(":,;.'\")").find(text[end - 1]) != std::string::npos) --end;
    out += text.substr(told, begin - told) + SecretUrl(text.substr(begin, end - begin)).shown();
    told = end;
  }
  return out + text.substr(told);
}

void forget_secrets(SQLite::Database& db) {
  std::vector<std::pair<std::string, std::string>> guards;  // append-only triggers, which would reject the changes
  for (SQLite::Statement rows(
           db, "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name LIKE '%is_append_only'");
       rows.executeStep();)
    guards.emplace_back(rows.getColumn(0).getString(), rows.getColumn(1).getString());
  for (const auto& [name, sql] : guards) db.exec("DROP TRIGGER " + name);
  db.exec(
      "UPDATE history SET evidence = json_remove(evidence, '$.command') WHERE json_valid(evidence) AND "
      "json_type(evidence, '$.command') IS NOT NULL;"
      "DELETE FROM scrape WHERE (url LIKE '%@%' AND url NOT LIKE '%***@%') OR (url LIKE '%?%' AND url NOT LIKE "
      "'%?match={%' AND url NOT LIKE '%?***%');");
  redact_column(db, "history", "evidence");
  redact_column(db, "value", "value");
  if (db.tableExists("action")) {  // version 1 has no such table
    db.exec(
        "UPDATE action SET payload = json_remove(payload, '$.url', '$.argv')"
        " WHERE kind IN ('webhook', 'alert', 'command', 'probe', 'redistil', 'disable', 'enable')"
        " AND (json_type(payload, '$.url') IS NOT NULL OR json_type(payload, '$.argv') IS NOT NULL);");
    for (const char* column : {"payload", "outcome"}) redact_column(db, "action", column);
    for (const char* column : {"reason", "evidence"}) redact_column(db, "transition", column);
  }
  for (const auto& [name, sql] : guards) db.exec(sql);
}

}  // namespace specdec::monitor
