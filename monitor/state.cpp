#include "monitor/state.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace specdec::monitor {

namespace {

constexpr int kApplicationId = 0x53504443;  // "SPDC"
constexpr int kVersion = 1;

constexpr const char* kSchema =
    "CREATE TABLE value (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    "CREATE TABLE source (file TEXT PRIMARY KEY, head TEXT NOT NULL, position INTEGER NOT NULL) STRICT;"
    "CREATE TABLE scrape (url TEXT PRIMARY KEY, counters TEXT NOT NULL) STRICT;"
    "CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, verdict TEXT NOT NULL, package TEXT NOT NULL,"
    " evidence TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER history_is_append_only BEFORE UPDATE ON history BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;"
    "CREATE TRIGGER history_keeps_all BEFORE DELETE ON history BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;";

// What SQLite says in the project's words: who must act.
[[noreturn]] void rethrow(const SQLite::Exception& e, const std::string& file) {
  switch (e.getErrorCode() & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(ErrorKind::kNetwork, file + ": the state is in use by another monitor: try again");
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      throw Error(ErrorKind::kData, file + ": not a monitor state, or damaged (" + e.what() + "): move it away to start anew");
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      throw Error(ErrorKind::kIo, file + ": " + e.what());
    default:
      throw Error(ErrorKind::kInternal, file + ": " + e.what());
  }
}

}  // namespace

struct State::Connection {
  std::string file;
  SQLite::Database db;

  Connection(const fs::path& path, int patience_ms) : file(path.string()), db(file, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, patience_ms) {}
};

namespace {

template <class F>
auto guarded(const std::string& file, F&& f) {
  try {
    return f();
  } catch (const SQLite::Exception& e) {
    rethrow(e, file);
  }
}

}  // namespace

State::State(const fs::path& file, Open open, int patience_ms) {
  std::error_code ec;
  const fs::file_status status = fs::status(file, ec);
  if (fs::exists(status) && !fs::is_regular_file(status)) throw Error(ErrorKind::kData, file.string() + ": not a regular file, expected the monitor's state");
  if (open == Open::kExisting && (!fs::exists(status) || fs::file_size(file, ec) == 0))
    throw Error(ErrorKind::kData, file.string() + ": no monitor state there (see specdec monitor check --state)");
  if (file.has_parent_path() && !fs::is_directory(file.parent_path(), ec))
    throw Error(ErrorKind::kIo, file.string() + ": its directory does not exist");
  guarded(file.string(), [&] {
    connection_ = std::make_unique<Connection>(file, patience_ms);
    SQLite::Database& db = connection_->db;
    db.exec("PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;");
    const int id = db.execAndGet("PRAGMA application_id").getInt();
    const int version = db.execAndGet("PRAGMA user_version").getInt();
    const int tables = db.execAndGet("SELECT count(*) FROM sqlite_schema").getInt();
    if (tables == 0) {
      SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
      db.exec(kSchema);
      db.exec("PRAGMA application_id=" + std::to_string(kApplicationId) + "; PRAGMA user_version=" + std::to_string(kVersion) + ";");
      transaction.commit();
      return;
    }
    if (id != kApplicationId) throw Error(ErrorKind::kData, file.string() + ": a database of another program, expected a monitor state");
    if (version != kVersion)
      throw Error(ErrorKind::kData, file.string() + ": state version " + std::to_string(version) + ", this specdec reads " + std::to_string(kVersion));
    const std::string check = db.execAndGet("PRAGMA quick_check").getString();
    if (check != "ok") throw Error(ErrorKind::kData, file.string() + ": damaged (" + check + "): move it away to start anew");
  });
}

State::~State() = default;

void State::begin() {
  guarded(connection_->file, [&] { connection_->db.exec("BEGIN IMMEDIATE"); });
}
void State::commit() {
  guarded(connection_->file, [&] { connection_->db.exec("COMMIT"); });
}
void State::rollback() {
  guarded(connection_->file, [&] { connection_->db.exec("ROLLBACK"); });
}

std::string State::value(const std::string& key) const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "SELECT value FROM value WHERE key = ?");
    query.bind(1, key);
    return query.executeStep() ? query.getColumn(0).getString() : std::string();
  });
}

void State::set_value(const std::string& key, const std::string& value) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "INSERT INTO value VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value");
    query.bind(1, key);
    query.bind(2, value);
    query.exec();
  });
}

FilePosition State::position(const std::string& identity) const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "SELECT head, position FROM source WHERE file = ?");
    query.bind(1, identity);
    if (!query.executeStep()) return FilePosition{};
    return FilePosition{static_cast<uint64_t>(query.getColumn(1).getInt64()), query.getColumn(0).getString()};
  });
}

void State::set_position(const std::string& identity, const FilePosition& position) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db,
                            "INSERT INTO source VALUES (?, ?, ?) ON CONFLICT(file) DO UPDATE SET head = excluded.head, position = excluded.position");
    query.bind(1, identity);
    query.bind(2, position.head);
    query.bind(3, static_cast<int64_t>(position.offset));
    query.exec();
  });
}

std::optional<Counters> State::counters(const std::string& url) const {
  return guarded(connection_->file, [&]() -> std::optional<Counters> {
    SQLite::Statement query(connection_->db, "SELECT counters FROM scrape WHERE url = ?");
    query.bind(1, url);
    if (!query.executeStep()) return std::nullopt;
    return counters_from_json(parse_json(query.getColumn(0).getString(), connection_->file), connection_->file);
  });
}

void State::set_counters(const std::string& url, const Counters& counters) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "INSERT INTO scrape VALUES (?, ?) ON CONFLICT(url) DO UPDATE SET counters = excluded.counters");
    query.bind(1, url);
    query.bind(2, to_json(counters).dump());
    query.exec();
  });
}

void State::append(const HistoryEntry& entry) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "INSERT INTO history (time, verdict, package, evidence) VALUES (?, ?, ?, ?)");
    query.bind(1, entry.time);
    query.bind(2, entry.verdict);
    query.bind(3, entry.package);
    query.bind(4, entry.evidence.dump());
    query.exec();
  });
}

std::vector<HistoryEntry> State::history(int64_t newest) const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db,
                            "SELECT id, time, verdict, package, evidence FROM (SELECT * FROM history ORDER BY id DESC LIMIT ?) ORDER BY id");
    query.bind(1, newest);
    std::vector<HistoryEntry> entries;
    while (query.executeStep()) {
      HistoryEntry e;
      e.id = query.getColumn(0).getInt64();
      e.time = query.getColumn(1).getInt64();
      e.verdict = query.getColumn(2).getString();
      e.package = query.getColumn(3).getString();
      e.evidence = parse_json(query.getColumn(4).getString(), connection_->file);
      entries.push_back(std::move(e));
    }
    return entries;
  });
}

}  // namespace specdec::monitor
