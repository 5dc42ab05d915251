#include "distill/rows/rejects.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "base/error.h"
#include "base/schema/reject_record.h"
#include "base/sha256.h"

namespace specdec::distill {

namespace {

namespace fs = std::filesystem;

// Limit for the length of a line in bytes; a record has at most 256 rejects with 64 tokens each.
constexpr size_t kMaxLine = size_t{1} << 20;

std::vector<fs::path> reject_files(const fs::path& directory) {
  std::vector<fs::path> out;
  for (const fs::path& folder : {directory, directory / "rejects"}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("rejects-") && name.ends_with(".jsonl") && entry.is_regular_file())
        out.push_back(entry.path());
    }
  }
  if (out.empty())
    throw Error(ErrorKind::kUsage, "--rejects " + directory.string() +
                                       ": no rejects-*.jsonl there: name the directory that `specdec serve --record "
                                       "DIR --record-rejects SHARE` wrote");
  std::sort(out.begin(), out.end());
  return out;
}

// Reads a line into `line`, without the newline. Returns false at the end of the file.
bool next_line(std::istream& in, const std::string& where, std::string& line) {
  line.clear();
  for (char c; in.get(c);) {
    if (c == '\n') return true;
    line += c;
    if (line.size() > kMaxLine)
      throw Error(ErrorKind::kData, where + ": a line of more than " + std::to_string(kMaxLine) + " bytes");
  }
  return !line.empty();
}

// Adds to `tokens` the positions of the row at which `record` has rejects. Returns false at the first such position at
// which the row and the record have different tokens: the row was then tokenised differently, so its later positions
// are shifted, too.
bool add(const RejectRecord& record, const TokenRow& row, std::vector<int32_t>& tokens) {
  for (const RejectRecord::Reject& reject : record.rejects) {
    const int64_t at = row.prompt_tokens + reject.position;
    if (at >= static_cast<int64_t>(row.tokens.size())) break;  // the row was cut before this position
    const auto t = static_cast<size_t>(at);
    if (row.tokens[t] != reject.next) return false;
    if (t > 0 && row.loss_mask[t] == 1) tokens.push_back(static_cast<int32_t>(at));
  }
  return true;
}

}  // namespace

Rejects read_rejects(const fs::path& directory, const std::vector<TokenRow>& rows) {
  Rejects out;
  out.tokens.resize(rows.size());
  std::map<std::string, size_t> by_id;
  for (size_t i = 0; i < rows.size(); ++i) by_id[rows[i].id] = i;
  for (const fs::path& file : reject_files(directory)) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw Error(ErrorKind::kIo, file.string() + ": cannot be read");
    std::string line;
    for (int64_t number = 1; next_line(in, file.string() + ":" + std::to_string(number), line); ++number) {
      const RejectRecord record = reject_record_from_line(line, file.string() + ":" + std::to_string(number));
      ++out.records;
      const auto it = by_id.find(record.id);
      if (it == by_id.end())
        ++out.absent;
      else if (!add(record, rows[it->second], out.tokens[it->second]))
        ++out.other_text;
    }
    if (in.bad()) throw Error(ErrorKind::kIo, file.string() + ": read error");
  }
  for (std::vector<int32_t>& tokens : out.tokens) {
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    out.matched += static_cast<int64_t>(tokens.size());
  }
  return out;
}

std::string digest_of(const Rejects& rejects) {
  std::string text;
  for (size_t row = 0; row < rejects.tokens.size(); ++row) {
    if (rejects.tokens[row].empty()) continue;
    text += std::to_string(row) + ":";
    for (const int32_t token : rejects.tokens[row]) text += " " + std::to_string(token);
    text += "\n";
  }
  return sha256_hex(text);
}

Json to_json(const Rejects& r) {
  return {{"records", r.records}, {"absent", r.absent}, {"other_text", r.other_text}, {"tokens", r.matched}};
}

}  // namespace specdec::distill
