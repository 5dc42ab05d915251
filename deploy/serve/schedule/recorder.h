// Writes traffic and acceptance records of finished answers as JSONL, on its own thread, so that the engine never waits
// for a disk. Lines are appended to "<name>.jsonl.partial". The file is renamed to "<name>.jsonl" when it is full or
// old, and at the end, so readers see only complete files. When the disk is full, records are lost (counted, and logged
// once), but requests are still answered.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "deploy/serve/schedule/metrics.h"
#include "deploy/serve/schedule/scheduler.h"

namespace specdec::deploy {

// A directory of log files, each replaced by a new file when it is full or old.
class RotatingLog {
 public:
  struct Limits {
    uint64_t bytes = 64u << 20;
    double seconds = 3600;
  };
  // Creates the directory and takes its lock. Throws Error(kNetwork), the kind that means "try again", if another
  // process records in this directory. Publishes the files that a killed process left.
  RotatingLog(std::filesystem::path directory, std::string stem, Limits limits, const Clock& clock);
  ~RotatingLog();

  void append(const std::string& line);  // throws Error(kIo)
  void rotate_if_old();
  void close();  // publishes the open file, if there is one

 private:
  std::filesystem::path directory_;
  std::string stem_;
  Limits limits_;
  const Clock& clock_;
  FileLock lock_;
  std::filesystem::path open_;  // "….jsonl.partial"; empty if no file is open
  uint64_t bytes_ = 0;
  double opened_ = 0;
  int64_t sequence_ = 0;
};

// Throws Error(kNetwork), the kind that means "try again", if another process records in the directory. Recorder's
// constructor makes the same check; with this function it can be made before models are loaded.
void require_no_other_recorder(const std::filesystem::path& directory);

struct RecorderOptions {
  std::string record_dir;      // "" = no traffic records; acceptance records go to its subdirectory "acceptance"
  std::string acceptance_log;  // a file to which acceptance records are appended as well; "" = none
  std::string target, draft;   // fingerprint ids; "" for draft = none
  bool rejects = false;        // true: rejected draft tokens are written to the subdirectory "rejects" of record_dir
  // Quota of all files under record_dir in bytes. At the quota, records are lost until files are removed. 0 = no quota.
  uint64_t quota_bytes = 0;
  RotatingLog::Limits traffic{64u << 20, 3600}, acceptance{8u << 20, 600};
  size_t pending = 4096;  // limit of records that wait for the disk; further ones are lost
};

class Recorder {
 public:
  // Opens the logs and starts the thread. Throws Error(kIo) if a directory or file cannot be written. Throws
  // Error(kNetwork), the kind that means "try again", if another process records in the same directory.
  Recorder(RecorderOptions options, Metrics& metrics, const Clock& clock);
  ~Recorder();  // calls stop()

  void record(const FinishedAnswer& answer);  // any thread; never blocks on the disk
  void stop();                                // writes the waiting records, then publishes the open files

 private:
  void work();
  void write(const FinishedAnswer& answer);
  void append(RotatingLog& log, const std::string& line);  // throws Error(kIo), also if the quota is reached
  void lost(const std::string& why);

  RecorderOptions options_;
  Metrics& metrics_;
  const Clock& clock_;
  std::unique_ptr<RotatingLog> traffic_, acceptance_, rejects_;
  uint64_t held_bytes_ = 0;  // size of record_dir: last measurement plus bytes written since
  double looked_at_ = 0;
  std::mutex mutex_;  // guards ready_, waiting_, stopping_ and complained_
  std::condition_variable ready_;
  std::deque<FinishedAnswer> waiting_;
  bool stopping_ = false, complained_ = false;
  std::thread thread_;
};

}  // namespace specdec::deploy
