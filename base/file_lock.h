// Advisory locks on files and directories.
#pragma once

#include <filesystem>

namespace specdec {

// Exclusive advisory lock for the life of the object. Throws Error(kNetwork) ("lock held by process N": exit 75) if it
// is taken, Error(kIo) for a symbolic link or for what is no regular file.
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

// A lock on a directory for the life of the object, or the finding that there is none to be had; never waits. It goes
// with the directory when that is renamed, ends with the process, and is not inherited by programs it starts.
class DirectoryLock {
 public:
  enum class Kind { kShared, kExclusive };
  enum class State {
    kHeld,
    kTaken,       // another process or object holds one that excludes this
    kGone,        // no such directory, or another took its name meanwhile
    kUnsupported  // the file system has no locks
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
