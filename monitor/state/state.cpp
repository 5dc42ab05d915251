#include "monitor/state/state.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "monitor/state/forget.h"

namespace specdec::monitor {

namespace {

constexpr int kApplicationId = 0x53504443;  // "SPDC" in ASCII
constexpr int kVersion = 3;  // same tables as version 2, without the secrets that versions 1 and 2 stored

constexpr const char* kSchema =
    "CREATE TABLE value (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    "CREATE TABLE source (file TEXT PRIMARY KEY, head TEXT NOT NULL, position INTEGER NOT NULL) STRICT;"
    "CREATE TABLE scrape (url TEXT PRIMARY KEY, counters TEXT NOT NULL) STRICT;"
    "CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, verdict TEXT NOT NULL, package "
    "TEXT NOT NULL,"
    " evidence TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER history_is_append_only BEFORE UPDATE ON history BEGIN SELECT RAISE(ABORT, 'history is "
    "append-only'); END;"
    "CREATE TRIGGER history_keeps_all BEFORE DELETE ON history BEGIN SELECT RAISE(ABORT, 'history is append-only'); "
    "END;";

// Adds the tables of version 2. If the --on-drift command of an alarm ran under version 1, this is recorded as an
// action that has ended.
constexpr const char* kSchema2 =
    "CREATE TABLE transition (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, from_state TEXT NOT NULL, "
    "to_state TEXT NOT NULL,"
    " event TEXT NOT NULL, reason TEXT NOT NULL, evidence TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER transition_is_append_only BEFORE UPDATE ON transition BEGIN SELECT RAISE(ABORT, 'transitions are "
    "append-only'); END;"
    "CREATE TRIGGER transition_keeps_all BEFORE DELETE ON transition BEGIN SELECT RAISE(ABORT, 'transitions are "
    "append-only'); END;"
    "CREATE TABLE action (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, payload "
    "TEXT NOT NULL,"
    " created INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL, attempts INTEGER NOT NULL, code "
    "INTEGER, outcome TEXT NOT NULL) STRICT;"
    "CREATE TRIGGER action_keeps_all BEFORE DELETE ON action BEGIN SELECT RAISE(ABORT, 'actions are kept'); END;"
    "INSERT INTO action (key, kind, payload, created, started, ended, attempts, code, outcome)"
    " SELECT key, 'command', '{}', 0, 1, 1, 1, 0, 'under version 1' FROM value WHERE key LIKE 'trigger %' AND value = "
    "'0';";
// The table of measurements was added after version 3: a check creates it if it is missing, and older programs ignore
// it. Its rows hold running sums, so removing a row between two others loses only resolution.
constexpr const char* kMeasurementTable =
    "CREATE TABLE IF NOT EXISTS measurement (slot INTEGER NOT NULL, epoch INTEGER NOT NULL, time INTEGER NOT NULL, "
    "figures TEXT NOT NULL, PRIMARY KEY (slot, epoch)) STRICT, WITHOUT ROWID;";
constexpr int64_t kSlotsPerHour = 3600 / Measurement::kEvery, kSlotsPerDay = 24 * kSlotsPerHour;
constexpr const char* kActionColumns =
    "SELECT id, key, kind, payload, created, ended, started, attempts, code, outcome FROM action ";

// Translates an SQLite error into an Error. Pass `reads_file` = false if the statement does not depend on the file's
// tables or values, so that its failure can only be a bug in the program.
[[noreturn]] void rethrow(const SQLite::Exception& e, const std::string& file, bool reads_file) {
  switch (e.getErrorCode() & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(ErrorKind::kNetwork, file + ": the state is in use by another monitor: try again");
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      throw Error(ErrorKind::kData,
                  file + ": not a monitor state, or damaged (" + e.what() + "): move it away to start anew");
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
      throw Error(reads_file ? ErrorKind::kData : ErrorKind::kInternal,
                  reads_file ? file + ": its tables are not those of a monitor state (" + e.what() +
                                   "): move it away to start anew"
                             : file + ": " + e.what());
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

template <class F>
auto guarded(const std::string& file, F&& f, bool reads_file = true) {
  try {
    return f();
  } catch (const SQLite::Exception& e) {
    rethrow(e, file, reads_file);
  }
}

// Makes the file readable for its user only. SQLite gives its journals the same mode.
void make_private(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return;  // SQLite reports the reason when it opens the file
  struct stat status{};
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077))
    ::fchmod(fd, status.st_mode & 0700);
  ::close(fd);
}

std::string text(SQLite::Statement& row, int column) { return row.getColumn(column).getString(); }
int64_t number(SQLite::Statement& row, int column) { return row.getColumn(column).getInt64(); }
const char* evidence_column(State::Detail detail) { return detail == State::Detail::kAll ? "evidence" : "'null'"; }

}  // namespace

struct State::Connection {
  std::string file;
  SQLite::Database db;

  Connection(const fs::path& path, int patience_ms)
      : file(path.string()), db(file, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, patience_ms) {}

  // Returns the number of rows changed.
  template <class... Values>
  int change(const char* sql, const Values&... values) {
    return guarded(file, [&] {
      SQLite::Statement query(db, sql);
      SQLite::bind(query, values...);
      return query.exec();
    });
  }
  // Returns read(row) for each row.
  template <class Read, class... Values>
  auto rows(const std::string& sql, Read&& read, const Values&... values) {
    return guarded(file, [&] {
      SQLite::Statement query(db, sql);
      SQLite::bind(query, values...);
      std::vector<decltype(read(query))> all;
      while (query.executeStep()) all.push_back(read(query));
      return all;
    });
  }
  // Returns read(row) for the first row, or nothing.
  template <class Read, class... Values>
  auto row(const std::string& sql, Read&& read, const Values&... values) {
    auto found = rows(sql, read, values...);
    return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
  }
  // Returns the newest `most` rows of an append-only table, oldest first.
  template <class Read>
  auto newest(const std::string& table, const std::string& columns, Read&& read, int64_t most) {
    return rows("SELECT * FROM (SELECT " + columns + " FROM " + table + " ORDER BY id DESC LIMIT ?) ORDER BY id", read,
                most);
  }
  Json json(SQLite::Statement& row, int column) const { return parse_json(text(row, column), file); }
  auto to_action() const {
    return [this](SQLite::Statement& row) {
      const SQLite::Column code = row.getColumn(8);
      return ActionEntry{number(row, 0), text(row, 1),   text(row, 2),
                         json(row, 3),   number(row, 4), number(row, 5),
                         number(row, 6), number(row, 7), code.isNull() ? std::nullopt : std::optional(code.getInt()),
                         text(row, 9)};
    };
  }
};

namespace {

constexpr const char* kPragmas =
    "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA "
    "cell_size_check=ON; PRAGMA secure_delete=ON;";

int version_of(SQLite::Database& db) { return db.execAndGet("PRAGMA user_version").getInt(); }

// Returns the name of a schema object that is not a table, an index or one of the monitor's own triggers; "" = none.
// Any other trigger or view would run when a table is used. The object's SQL decides what it is, because the type
// stated in the file may be wrong.
std::string foreign_object(SQLite::Database& db) {
  for (SQLite::Statement rows(db, "SELECT name, sql FROM sqlite_schema"); rows.executeStep();) {
    const std::string sql = text(rows, 1);
    const bool is_table =
        sql.starts_with("CREATE TABLE ") || sql.starts_with("CREATE INDEX ") || sql.starts_with("CREATE UNIQUE INDEX ");
    const auto is_in = [&](std::string_view schema) { return schema.find(sql + ";") != std::string_view::npos; };
    const bool is_own_trigger = sql.starts_with("CREATE TRIGGER ") && (is_in(kSchema) || is_in(kSchema2));
    if (!sql.empty() && !is_table && !is_own_trigger) return text(rows, 0);
  }
  return "";
}

void copy_to(SQLite::Database& db, const fs::path& copy) {
  std::error_code ignored;
  fs::remove(copy, ignored);
  make_private(copy);
  SQLite::Statement vacuum(db, "VACUUM INTO ?");
  vacuum.bind(1, copy.string());
  vacuum.exec();
}

// Removes deleted data from the free pages of the file. Uses memory, so that no directory for temporary files is
// needed.
void rebuild(SQLite::Database& db) { db.exec("PRAGMA temp_store=MEMORY; VACUUM"); }

// Removes the secrets from the copy <file>.v1 that this or an earlier upgrade made. Does nothing if `copy` is another
// file, damaged or read-only.
void forget_in_copy(const fs::path& copy) {
  std::error_code ec;
  if (!fs::is_regular_file(copy, ec)) return;
  try {
    SQLite::Database db(copy.string(), SQLite::OPEN_READWRITE);
    db.exec(kPragmas);
    if (db.execAndGet("PRAGMA application_id").getInt() != kApplicationId || version_of(db) != 1 ||
        !foreign_object(db).empty())
      return;
    rebuild(db);
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    forget_secrets(db);
    transaction.commit();
  } catch (const SQLite::Exception& e) {
    const int code = e.getErrorCode() & 0xff;
    if (code != SQLITE_NOTADB && code != SQLITE_CORRUPT && code != SQLITE_READONLY && code != SQLITE_CANTOPEN &&
        code != SQLITE_PERM)
      throw;
  }
}

// Upgrades the file in one transaction. A file of version 1 is copied first; an incomplete copy, left by an interrupted
// upgrade, is made again.
void migrate(SQLite::Database& db, const fs::path& file, int from) {
  if (from == 1 && db.tableExists("action"))
    throw Error(
        ErrorKind::kData,
        file.string() + ": says that it is of version 1 and has tables of a later one: move it away to start anew");
  const fs::path copy = file.string() + ".v1";
  if (from == 1) copy_to(db, copy);
  forget_in_copy(copy);
  rebuild(db);
  SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
  if (version_of(db) != from) return;  // another process has upgraded it already
  if (from == 1) db.exec(kSchema2);
  forget_secrets(db);
  db.exec("PRAGMA user_version=" + std::to_string(kVersion) + ";");
  transaction.commit();
}

}  // namespace

State::State(const fs::path& file, Open open, int patience_ms) {
  std::error_code ec;
  const fs::file_status status = fs::status(file, ec);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw Error(ErrorKind::kData, file.string() + ": not a regular file, expected the monitor's state");
  if (open == Open::kExisting && (!fs::exists(status) || fs::file_size(file, ec) == 0))
    throw Error(ErrorKind::kData, file.string() + ": no monitor state there (see specdec monitor check --state)");
  if (file.has_parent_path() && !fs::is_directory(file.parent_path(), ec))
    throw Error(ErrorKind::kIo, file.string() + ": its directory does not exist");
  const bool is_new = !fs::exists(status) || fs::file_size(file, ec) == 0;
  if (is_new) make_private(file);
  guarded(file.string(), [&] {
    connection_ = std::make_unique<Connection>(file, patience_ms);
    SQLite::Database& db = connection_->db;
    db.exec(kPragmas);
    const int id = db.execAndGet("PRAGMA application_id").getInt();
    const int version = version_of(db);
    const int tables = db.execAndGet("SELECT count(*) FROM sqlite_schema").getInt();
    if (tables == 0) {
      SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
      db.exec(kSchema);
      db.exec(kSchema2);
      db.exec("PRAGMA application_id=" + std::to_string(kApplicationId) +
              "; PRAGMA user_version=" + std::to_string(kVersion) + ";");
      transaction.commit();
      return;
    }
    if (id != kApplicationId)
      throw Error(ErrorKind::kData, file.string() + ": a database of another program, expected a monitor state");
    if (const std::string foreign = foreign_object(db); !foreign.empty())
      throw Error(ErrorKind::kData, file.string() + ": has a trigger or view that no monitor made (" + foreign +
                                        "): move it away to start anew");
    if (open == Open::kOrCreate) make_private(file);  // only now the program knows that this is a state file
    if (version < 1 || version > kVersion)
      throw Error(ErrorKind::kData, file.string() + ": state version " + std::to_string(version) +
                                        ", this specdec reads 1 to " + std::to_string(kVersion));
    const std::string check = db.execAndGet("PRAGMA quick_check").getString();
    if (check != "ok")
      throw Error(ErrorKind::kData, file.string() + ": damaged (" + check + "): move it away to start anew");
    if (version < kVersion) migrate(db, file, version);
  });
}

State::~State() = default;

void State::begin() {
  guarded(connection_->file, [&] { connection_->db.exec("BEGIN IMMEDIATE"); }, false);
}
void State::commit() {
  guarded(connection_->file, [&] { connection_->db.exec("COMMIT"); }, false);
}
void State::rollback() {
  // After some errors, such as disk errors, SQLite has rolled back by itself; a ROLLBACK would then fail.
  if (::sqlite3_get_autocommit(connection_->db.getHandle()) == 0)
    guarded(connection_->file, [&] { connection_->db.exec("ROLLBACK"); }, false);
}

std::string State::value(const std::string& key) const {
  return connection_
      ->row(
          "SELECT value FROM value WHERE key = ?", [](SQLite::Statement& row) { return text(row, 0); }, key)
      .value_or("");
}

void State::set_value(const std::string& key, const std::string& value) {
  connection_->change("INSERT INTO value VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value", key,
                      value);
}

int64_t State::epoch() const {
  const std::string text = value("epoch");
  if (text.empty()) return 0;
  int64_t epoch = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), epoch);
  if (error != std::errc() || end != text.data() + text.size() || epoch < 0 || epoch > kMaxCount)
    throw Error(ErrorKind::kData,
                connection_->file + ": epoch: expected a number in [0, 2^50]: move it away to start anew");
  return epoch;
}

FilePosition State::position(const std::string& identity) const {
  const auto read = [](SQLite::Statement& row) {
    return FilePosition{static_cast<uint64_t>(number(row, 1)), text(row, 0)};
  };
  return connection_->row("SELECT head, position FROM source WHERE file = ?", read, identity).value_or(FilePosition{});
}

void State::set_position(const std::string& identity, const FilePosition& position) {
  connection_->change(
      "INSERT INTO source VALUES (?, ?, ?) ON CONFLICT(file) DO UPDATE SET head = excluded.head, position = "
      "excluded.position",
      identity, position.head, static_cast<int64_t>(position.offset));
}

std::optional<Counters> State::counters(const std::string& url) const {
  const auto read = [this](SQLite::Statement& row) {
    return counters_from_json(connection_->json(row, 0), connection_->file);
  };
  return connection_->row("SELECT counters FROM scrape WHERE url = ?", read, url);
}

void State::set_counters(const std::string& url, const Counters& counters) {
  connection_->change("INSERT INTO scrape VALUES (?, ?) ON CONFLICT(url) DO UPDATE SET counters = excluded.counters",
                      url, to_json(counters).dump());
}

void State::append(const HistoryEntry& e) {
  connection_->change("INSERT INTO history (time, verdict, package, evidence) VALUES (?, ?, ?, ?)", e.time, e.verdict,
                      e.package, e.evidence.dump());
}

std::vector<HistoryEntry> State::history(int64_t newest, Detail detail) const {
  const std::string columns = std::string("id, time, verdict, package, ") + evidence_column(detail);
  const auto read = [this](SQLite::Statement& row) {
    return HistoryEntry{number(row, 0), number(row, 1), text(row, 2), text(row, 3), connection_->json(row, 4)};
  };
  return connection_->newest("history", columns, read, newest);
}

Json State::evidence_of(int64_t history_id) const {
  const auto read = [this](SQLite::Statement& row) { return connection_->json(row, 0); };
  return connection_->row("SELECT evidence FROM history WHERE id = ?", read, history_id).value_or(Json());
}

void State::add(const Measurement& m) {
  connection_->change(kMeasurementTable);
  const int64_t slot = m.time / Measurement::kEvery, old = slot - 30 * kSlotsPerDay;
  connection_->change(
      "INSERT INTO measurement VALUES (?, ?, ?, ?) ON CONFLICT (slot, epoch) DO UPDATE SET time = excluded.time, "
      "figures "
      "= excluded.figures",
      slot, m.epoch, m.time, figures_text(m));
  // Thins out only the last week before the 30-day limit, because earlier checks have thinned out older measurements.
  connection_->change(
      "DELETE FROM measurement WHERE slot >= ?1 AND slot < ?2 AND EXISTS (SELECT 1 FROM measurement AS later WHERE "
      "later.slot > measurement.slot AND later.slot < (measurement.slot / ?3 + 1) * ?3 AND later.epoch = "
      "measurement.epoch)",
      old - 7 * kSlotsPerDay, old, kSlotsPerHour);
}

std::vector<Measurement> State::measurements() const {
  if (!guarded(connection_->file, [&] { return connection_->db.tableExists("measurement"); })) return {};
  const auto read = [this](SQLite::Statement& row) {
    Measurement m = measurement_from_text(text(row, 2), connection_->file);
    m.epoch = number(row, 0);
    m.time = number(row, 1);
    return m;
  };
  return connection_->rows("SELECT epoch, time, figures FROM measurement ORDER BY epoch, slot", read);
}

int64_t State::append(const TransitionEntry& e) {
  connection_->change(
      "INSERT INTO transition (time, from_state, to_state, event, reason, evidence) VALUES (?, ?, ?, ?, ?, ?)", e.time,
      e.from, e.to, e.event, e.reason, e.evidence.dump());
  return connection_->db.getLastInsertRowid();
}

std::vector<TransitionEntry> State::transitions(int64_t newest, Detail detail) const {
  const std::string columns = std::string("id, time, from_state, to_state, event, reason, ") + evidence_column(detail);
  const auto read = [this](SQLite::Statement& row) {
    return TransitionEntry{number(row, 0), number(row, 1),           text(row, 2), text(row, 3), text(row, 4),
                           text(row, 5),   connection_->json(row, 6)};
  };
  return connection_->newest("transition", columns, read, newest);
}

bool State::add_action(const ActionEntry& e) {
  return connection_->change(
             "INSERT INTO action (key, kind, payload, created, started, ended, attempts, outcome) VALUES (?, ?, ?, ?, "
             "0, 0, 0, '') ON CONFLICT(key) DO NOTHING",
             e.key, e.kind, e.payload.dump(), e.created) == 1;
}

std::optional<ActionEntry> State::action(const std::string& key) const {
  return connection_->row(std::string(kActionColumns) + "WHERE key = ?", connection_->to_action(), key);
}

std::vector<ActionEntry> State::pending_actions() const {
  return connection_->rows(std::string(kActionColumns) + "WHERE ended = 0 ORDER BY id", connection_->to_action());
}

std::vector<ActionEntry> State::actions_of(const std::string& kind, int64_t created_since) const {
  return connection_->rows(std::string(kActionColumns) + "WHERE kind = ? AND created >= ? ORDER BY id",
                           connection_->to_action(), kind, created_since);
}

void State::start_action(int64_t id, int64_t time) {
  connection_->change("UPDATE action SET started = ?, attempts = attempts + 1 WHERE id = ?", time, id);
}

void State::record_attempt(int64_t id, int code, const std::string& outcome) {
  connection_->change("UPDATE action SET code = ?, outcome = ?, started = 0 WHERE id = ?", code, outcome, id);
}

void State::end_action(int64_t id, int64_t time) {
  connection_->change("UPDATE action SET ended = ? WHERE id = ?", time, id);
}

}  // namespace specdec::monitor
