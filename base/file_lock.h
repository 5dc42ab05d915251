// Advisory locks on files and directories.
#pragma once

#include <filesystem>

namespace specdec {

// Holds an exclusive advisory lock while the object exists. Throws Error(kNetwork), the kind that means "try again", if
// the lock is taken ("lock held by process N"), and Error(kIo) for a symbolic link or a path that is not a regular
// file.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  int descriptor() const { return fd_; }  // closed on exec; a child that keeps it open keeps the lock

 private:
  int fd_ = -1;
};

// Tries to lock a directory while the object exists, and never waits; state() says whether it succeeded. The lock stays
// with the directory when the directory is renamed, ends with the process, and is not inherited by programs that the
// process starts.
class DirectoryLock {
 public:
  enum class Kind { kShared, kExclusive };
  enum class State {
    kHeld,
    kTaken,       // another process or object holds a conflicting lock
    kGone,        // the directory does not exist, or was replaced by another one meanwhile
    kUnsupported  // the file system does not support locks
  };
  DirectoryLock(const std::filesystem::path& directory, Kind kind);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  State state() const { return state_; }

 private:
  int fd_ = -1;
  State state_ = State::kGone;
};

}  // namespace specdec
