// Files: bounded reads that refuse anything but regular files, mapped views, and crash-safe publishing.
// A write error, a failed fsync or a full disk is Error(kIo) naming the path; a half-written target never appears.
// Calls that a signal interrupts are made again, and writes that end early go on. tests/faults injects all of these.
//
// What is written here is for this user alone: files get 0600 and directories 0700, whatever the umask says, since most
// of them hold prompts, answers, training data or state. What is meant for others is written while a PublicFiles lives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace specdec {

namespace fs = std::filesystem;

// While one lives, what this thread creates through this file can be read by others as far as the umask allows (at most
// 0664 and 0775: never written by everyone): stores and packages, the hub's cache, files for a repository, metrics for
// an exporter.
class PublicFiles {
 public:
  PublicFiles();
  ~PublicFiles();
  PublicFiles(const PublicFiles&) = delete;
  PublicFiles& operator=(const PublicFiles&) = delete;
};

// Throws the Error(kIo) that names the path, what could not be done and the errno.
[[noreturn]] void io_error(const fs::path& path, const std::string& action, int error);

// The whole of `bytes` into an open file; then what was written onto the disk. Throw Error(kIo) naming `path`. A flush
// that failed is final: nobody knows what of the file is there, and a second one would find nothing left to write.
void write_all(int fd, std::string_view bytes, const fs::path& path);
void flush_to_disk(int fd, const fs::path& path);

// open(2) with these flags and O_CLOEXEC, O_NOCTTY; a new file gets the mode above. Throws Error(kIo) naming `path`.
// The caller closes it.
int open_file(const fs::path& path, int flags);

// Whole content of a regular file (opened O_NONBLOCK and fstat'ed, so a FIFO or a device neither hangs nor is read).
// Throws Error(kind) if missing, not regular or larger than max_bytes; Error(kIo) if reading fails or is not permitted.
std::string read_file(const fs::path& path, size_t max_bytes = 64u << 20, ErrorKind kind = ErrorKind::kData);

// Fills `out` from a pipe or standard input; less only at its end. Throws Error(kIo) naming `what`, Error(kNetwork)
// after a stop request.
size_t read_stream(int fd, std::span<char> out, const std::string& what);

// Read-only bytes of a regular file, read with pread on demand: a file truncated meanwhile is an error, not a SIGBUS.
class InputFile {
 public:
  explicit InputFile(fs::path path, ErrorKind kind = ErrorKind::kModel);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  // Fills `out` from `offset`. Throws Error(kind) past the end, Error(kIo) on a read error. Thread-safe.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  fs::path path_;
  ErrorKind kind_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Buffered sequential writer to a new file; finish() flushes, fsyncs and closes with every return value checked.
// Without finish() the destructor removes the file. One that resumes appends to what is there, and what it wrote stays,
// unless it could not be flushed to disk: nobody knows then what of it is there, so the file goes. A symbolic link at
// `path` is Error(kIo): what it leads to is another's.
class OutputFile {
 public:
  enum class Open { kNew, kResume };
  explicit OutputFile(fs::path path, Open how = Open::kNew);  // O_CREAT, and O_TRUNC when new
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  void finish();
  uint64_t bytes_written() const { return written_; }

 private:
  void flush();
  fs::path path_;
  Open how_;
  int fd_ = -1;
  std::string buffer_;
  uint64_t written_ = 0;
};

// Replaces `path` with `bytes`: unique temporary file beside it, write, fsync, rename, fsync of the directory.
void write_file_atomic(const fs::path& path, std::string_view bytes);

// The same for a file that must not replace another: false, and nothing written, if `path` exists already. It appears
// whole or not at all.
bool publish_file(const fs::path& path, std::string_view bytes);

// Appends one line (a newline is added) to a JSONL file in one write(2) call, or more where the first one ends early.
// `durable`: fsynced before it returns, a new file's name too.
void append_line(const fs::path& path, std::string_view line, bool durable = false);

void fsync_directory(const fs::path& directory);

// rename(2) and fsync of the directory: `to` is replaced.
void rename_file(const fs::path& from, const fs::path& to);
// Makes `path` a symbolic link to `target` (as it is, relative to `path`'s directory); what is there is replaced in one
// rename.
void write_link_atomic(const fs::path& path, const fs::path& target);

// Copies a regular file (symbolic links are followed) to a new file, fsynced. Throws Error(kind) for a source that is
// missing or not regular, Error(kIo) otherwise.
void copy_regular_file(const fs::path& from, const fs::path& to, ErrorKind kind = ErrorKind::kData);

// Makes the directory and its missing parents, durably.
void make_directories(const fs::path& directory);
// The same for one that holds what only this user may read. One that is there and that other users can look into or
// write to is used as it is, with one warning in the log: a volume that a cluster mounts is often open to all, and the
// files in it are private anyway.
void make_private_directory(const fs::path& directory);

// Removes a file or a whole directory tree; links are removed, never followed. What is gone already is no error.
void remove_tree(const fs::path& path);

// Builds a directory under a temporary name beside `destination`, then publishes it: fill(tmp) writes the files (each
// one fsynced by write_file_atomic or OutputFile), directories are fsynced, and tmp is renamed to `destination` without
// replacing. Returns false, and removes tmp, if `destination` exists already. Leftovers of killed runs are named
// "<name>.<random>.partial" and are removed by remove_partials.
bool publish_directory(const fs::path& destination, const std::function<void(const fs::path& tmp)>& fill);
// The same where the name follows from the content: built in `workshop` (on the same file system) under a random name
// and published at the path that fill returns. is_new is false, and the built one removed, if that path exists already.
struct Published {
  fs::path path;
  bool is_new = false;
};
Published publish_from(const fs::path& workshop, const std::function<fs::path(const fs::path& tmp)>& fill);
// As publish_directory, but an existing `destination` is exchanged for the new one in one rename and then removed. A
// file system without an atomic exchange is Error(kIo).
void replace_directory(const fs::path& destination, const std::function<void(const fs::path& tmp)>& fill);
// Removes "*.partial" entries of `parent` whose modification time is at least that long ago. No parent: nothing to do.
void remove_partials(const fs::path& parent, int64_t older_than_seconds);

// Bytes available to this user on the file system that holds `path` (nearest existing parent).
uint64_t free_disk_bytes(const fs::path& path);

}  // namespace specdec
