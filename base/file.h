// File access: bounded reads that accept only regular files, and crash-safe writes. A write error, a failed fsync or a
// full disk throws Error(kIo) naming the path, and leaves no half-written file under that path. Calls interrupted by a
// signal are repeated, and short writes are continued. tests/faults injects all of these.
//
// Files and directories written here are private by default: files get 0600 and directories 0700, whatever the umask
// says, because most of them hold prompts, answers, training data or state. While a PublicFiles exists, others may read
// them.
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

// While an object of this class exists, files that this thread creates can be read by others as far as the umask allows
// (files get at most 0664 and directories 0775, so nobody outside the group can write). Used for stores and packages,
// the hub's cache, files for a repository, and metrics for an exporter.
class PublicFiles {
 public:
  PublicFiles();
  ~PublicFiles();
  PublicFiles(const PublicFiles&) = delete;
  PublicFiles& operator=(const PublicFiles&) = delete;
};

// Throws an Error(kIo) that names the path, the failed action and the errno.
[[noreturn]] void io_error(const fs::path& path, const std::string& action, int error);

// write_all writes all of `bytes` to an open file; flush_to_disk calls fsync. Both throw Error(kIo) naming `path`. A
// failed fsync is final: nobody knows which part of the file is on the disk, and a second fsync would find nothing left
// to write.
void write_all(int fd, std::string_view bytes, const fs::path& path);
void flush_to_disk(int fd, const fs::path& path);

// Calls open(2) with these flags and O_CLOEXEC, O_NOCTTY. A new file gets mode 0600, or 0664 less the umask while a
// PublicFiles exists. Throws Error(kIo) naming `path`. The caller closes the descriptor.
int open_file(const fs::path& path, int flags);

// Returns the whole content of a regular file. A FIFO or a device is refused without being read and without waiting.
// Throws Error(kind) if the file is missing, not regular or larger than max_bytes, and Error(kIo) if reading fails or
// is not permitted.
std::string read_file(const fs::path& path, size_t max_bytes = 64u << 20, ErrorKind kind = ErrorKind::kData);

// Fills `out` from a pipe or standard input. Returns the number of bytes read, which is smaller than out.size() only at
// the end of the stream. Throws Error(kIo) naming `what` if reading fails, and Error(kNetwork), the kind that means
// "try again", after a stop request.
size_t read_stream(int fd, std::span<char> out, const std::string& what);

// A regular file that is read on demand with pread, so that a file truncated meanwhile causes an Error and not a
// SIGBUS.
class InputFile {
 public:
  explicit InputFile(fs::path path, ErrorKind kind = ErrorKind::kModel);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  // Fills `out` from `offset`. Throws Error(kind) beyond the end, Error(kIo) on a read error. Thread-safe.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  fs::path path_;
  ErrorKind kind_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// A buffered sequential writer to a file. finish() flushes, fsyncs and closes the file and checks every return value.
// The destructor removes a new file unless finish() was called. A resumed file is appended to and keeps its earlier
// content. If fsync or close fails, nobody knows what is on the disk, so the file is removed in both cases. A symbolic
// link at `path` is Error(kIo), because the link may lead to somebody else's file.
class OutputFile {
 public:
  enum class Open { kNew, kResume };
  explicit OutputFile(fs::path path, Open how = Open::kNew);  // opens with O_CREAT; kNew adds O_TRUNC
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  void finish();

 private:
  void flush();
  fs::path path_;
  Open how_;
  int fd_ = -1;
  std::string buffer_;
};

// Replaces `path` with `bytes`: writes a unique temporary file beside it, fsyncs and renames it, and fsyncs the
// directory.
void write_file_atomic(const fs::path& path, std::string_view bytes);

// Writes a file that must not replace another: returns false and writes nothing if `path` exists. The file appears
// whole or not at all.
bool publish_file(const fs::path& path, std::string_view bytes);

// Appends one line (a newline is added) to a regular JSONL file, if possible in one write(2). If `durable`, the file
// and the name of a new file are on the disk before the function returns. Throws Error(kIo), also if `path` is a
// symbolic link.
void append_line(const fs::path& path, std::string_view line, bool durable = false);

void fsync_directory(const fs::path& directory);

// Calls rename(2) and fsyncs the directory. Replaces `to` if it exists.
void rename_file(const fs::path& from, const fs::path& to);
// Makes `path` a symbolic link to `target` (used as given, relative to `path`'s directory). Replaces what exists there
// in one rename.
void write_link_atomic(const fs::path& path, const fs::path& target);

// Copies a regular file (following symbolic links) to a new file and fsyncs the copy. Throws Error(kind) for a source
// that is missing or not regular, Error(kIo) for any other failure.
void copy_regular_file(const fs::path& from, const fs::path& to, ErrorKind kind = ErrorKind::kData);

// Creates the directory and its missing parents, durably.
void make_directories(const fs::path& directory);
// Creates a directory for files that only this user may read. An existing directory is used as it is. If other users
// can look into it or write to it, one warning is logged; this is no error, because volumes in a cluster are often
// mounted open to all, and the files inside are private anyway.
void make_private_directory(const fs::path& directory);

// Removes a file or a whole directory tree; links are removed and never followed. A missing path is not an error.
void remove_tree(const fs::path& path);

// Builds a directory under a temporary name beside `destination` and then publishes it. fill(tmp) writes the files
// (fsyncing each by write_file_atomic or OutputFile), the directories are fsynced, and tmp is renamed to `destination`
// without replacing anything. Returns false and removes tmp if `destination` exists already. Killed runs leave
// "<name>.<random>.partial", which remove_partials removes.
bool publish_directory(const fs::path& destination, const std::function<void(const fs::path& tmp)>& fill);
// Publishes a directory whose name depends on its content: it is built in `workshop` (on the same file system) under a
// random name, and published at the path that fill returns. If that path exists already, is_new is false and the new
// directory is removed.
struct Published {
  fs::path path;
  bool is_new = false;
};
Published publish_from(const fs::path& workshop, const std::function<fs::path(const fs::path& tmp)>& fill);
// Works like publish_directory, but exchanges an existing `destination` for the new directory in one rename and then
// removes the old one. Throws Error(kIo) on a file system without an atomic exchange.
void replace_directory(const fs::path& destination, const std::function<void(const fs::path& tmp)>& fill);
// Removes the "*.partial" entries of `parent` that were last modified at least `older_than_seconds` ago. Does nothing
// if `parent` is missing.
void remove_partials(const fs::path& parent, int64_t older_than_seconds);

// Returns the bytes available to this user on the file system of `path` (or of its nearest existing parent).
uint64_t free_disk_bytes(const fs::path& path);

}  // namespace specdec
