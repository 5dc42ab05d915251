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
constexpr int kVersion = 2;

constexpr const char* kSchema =
    "CREATE TABLE value (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    "CREATE TABLE source (file TEXT PRIMARY KEY, head TEXT NOT NULL, position INTEGER NOT NULL) STRICT;"
    "CREATE TABLE scrape (url TEXT PRIMARY KEY, counters TEXT NOT NULL) STRICT;"
    "CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, verdict TEXT NOT NULL, package TEXT NOT NULL,"
    " evidence TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER history_is_append_only BEFORE UPDATE ON history BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;"
    "CREATE TRIGGER history_keeps_all BEFORE DELETE ON history BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;";

// Version 2. What --on-drift had settled under version 1 stays settled.
constexpr const char* kSchema2 =
    "CREATE TABLE transition (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, from_state TEXT NOT NULL, to_state TEXT NOT NULL,"
    " event TEXT NOT NULL, reason TEXT NOT NULL, evidence TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER transition_is_append_only BEFORE UPDATE ON transition BEGIN SELECT RAISE(ABORT, 'transitions are append-only'); END;"
    "CREATE TRIGGER transition_keeps_all BEFORE DELETE ON transition BEGIN SELECT RAISE(ABORT, 'transitions are append-only'); END;"
    "CREATE TABLE action (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, payload TEXT NOT NULL,"
    " created INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL, attempts INTEGER NOT NULL, code INTEGER, outcome TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER action_keeps_all BEFORE DELETE ON action BEGIN SELECT RAISE(ABORT, 'actions are kept'); END;"
    "INSERT INTO action (key, kind, payload, created, started, ended, attempts, code, outcome)"
    " SELECT key, 'command', '{}', 0, 1, 1, 1, 0, 'under version 1' FROM value WHERE key LIKE 'trigger %' AND value = '0';";
constexpr const char* kActionColumns = "SELECT id, key, kind, payload, created, ended, started, attempts, code, outcome FROM action ";

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

  std::vector<ActionEntry> actions(SQLite::Statement& query) const;
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

// Forward only, in one transaction, the old file copied before. A copy that was cut short is made anew.
void migrate(SQLite::Database& db, const fs::path& file) {
  const std::string copy = file.string() + ".v1";
  std::error_code ignored;
  fs::remove(copy, ignored);
  SQLite::Statement vacuum(db, "VACUUM INTO ?");
  vacuum.bind(1, copy);
  vacuum.exec();
  SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
  if (db.execAndGet("PRAGMA user_version").getInt() != 1) return;  // another process was faster
  db.exec(kSchema2);
  db.exec("PRAGMA user_version=" + std::to_string(kVersion) + ";");
  transaction.commit();
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
      db.exec(kSchema2);
      db.exec("PRAGMA application_id=" + std::to_string(kApplicationId) + "; PRAGMA user_version=" + std::to_string(kVersion) + ";");
      transaction.commit();
      return;
    }
    if (id != kApplicationId) throw Error(ErrorKind::kData, file.string() + ": a database of another program, expected a monitor state");
    if (version < 1 || version > kVersion)
      throw Error(ErrorKind::kData, file.string() + ": state version " + std::to_string(version) + ", this specdec reads 1 to " + std::to_string(kVersion));
    const std::string check = db.execAndGet("PRAGMA quick_check").getString();
    if (check != "ok") throw Error(ErrorKind::kData, file.string() + ": damaged (" + check + "): move it away to start anew");
    if (version == 1) migrate(db, file);
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

int64_t State::append(const TransitionEntry& entry) {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "INSERT INTO transition (time, from_state, to_state, event, reason, evidence) VALUES (?, ?, ?, ?, ?, ?)");
    query.bind(1, entry.time);
    query.bind(2, entry.from);
    query.bind(3, entry.to);
    query.bind(4, entry.event);
    query.bind(5, entry.reason);
    query.bind(6, entry.evidence.dump());
    query.exec();
    return connection_->db.getLastInsertRowid();
  });
}

std::vector<TransitionEntry> State::transitions(int64_t newest) const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db,
                            "SELECT id, time, from_state, to_state, event, reason, evidence FROM (SELECT * FROM transition ORDER BY id DESC LIMIT ?) ORDER BY id");
    query.bind(1, newest);
    std::vector<TransitionEntry> entries;
    while (query.executeStep())
      entries.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getInt64(), query.getColumn(2).getString(), query.getColumn(3).getString(),
                         query.getColumn(4).getString(), query.getColumn(5).getString(), parse_json(query.getColumn(6).getString(), connection_->file)});
    return entries;
  });
}

bool State::add_action(const ActionEntry& entry) {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db,
                            "INSERT INTO action (key, kind, payload, created, started, ended, attempts, outcome) VALUES (?, ?, ?, ?, 0, 0, 0, '') ON CONFLICT(key) DO NOTHING");
    query.bind(1, entry.key);
    query.bind(2, entry.kind);
    query.bind(3, entry.payload.dump());
    query.bind(4, entry.created);
    return query.exec() == 1;
  });
}

std::vector<ActionEntry> State::Connection::actions(SQLite::Statement& query) const {
  std::vector<ActionEntry> entries;
  while (query.executeStep()) {
    ActionEntry e{query.getColumn(0).getInt64(), query.getColumn(1).getString(), query.getColumn(2).getString(), parse_json(query.getColumn(3).getString(), file),
                  query.getColumn(4).getInt64(), query.getColumn(5).getInt64(), query.getColumn(6).getInt64(), query.getColumn(7).getInt64(), {},
                  query.getColumn(9).getString()};
    if (!query.getColumn(8).isNull()) e.code = query.getColumn(8).getInt();
    entries.push_back(std::move(e));
  }
  return entries;
}

std::optional<ActionEntry> State::action(const std::string& key) const {
  return guarded(connection_->file, [&]() -> std::optional<ActionEntry> {
    SQLite::Statement query(connection_->db, std::string(kActionColumns) + "WHERE key = ?");
    query.bind(1, key);
    std::vector<ActionEntry> found = connection_->actions(query);
    return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
  });
}

std::vector<ActionEntry> State::pending_actions() const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, std::string(kActionColumns) + "WHERE ended = 0 ORDER BY id");
    return connection_->actions(query);
  });
}

std::vector<ActionEntry> State::actions_of(const std::string& kind, int64_t created_since) const {
  return guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, std::string(kActionColumns) + "WHERE kind = ? AND created >= ? ORDER BY id");
    query.bind(1, kind);
    query.bind(2, created_since);
    return connection_->actions(query);
  });
}

void State::start_action(int64_t id, int64_t time) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "UPDATE action SET started = ?, attempts = attempts + 1 WHERE id = ?");
    query.bind(1, time);
    query.bind(2, id);
    query.exec();
  });
}

void State::record_attempt(int64_t id, int code, const std::string& outcome) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "UPDATE action SET code = ?, outcome = ?, started = 0 WHERE id = ?");
    query.bind(1, code);
    query.bind(2, outcome);
    query.bind(3, id);
    query.exec();
  });
}

void State::end_action(int64_t id, int64_t time) {
  guarded(connection_->file, [&] {
    SQLite::Statement query(connection_->db, "UPDATE action SET ended = ? WHERE id = ?");
    query.bind(1, time);
    query.bind(2, id);
    query.exec();
  });
}

}  // namespace specdec::monitor
