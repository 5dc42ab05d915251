#include "base/gguf/model_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/environment.h"
#include "base/file.h"
#include "base/gguf/header_reader.h"
#include "base/sha256.h"
#include "base/version.h"

namespace specdec::gguf {

namespace {

fs::path cache_folder() {
  const std::string cache = environment({"XDG_CACHE_HOME"}), home = environment({"HOME"});
  if (cache.empty() && home.empty())
    throw Error(ErrorKind::kConfig, "HOME is not set: set XDG_CACHE_HOME to a folder for caches");
  return (cache.empty() ? fs::path(home) / ".cache" : fs::path(cache)) / "specdec" / "gguf";
}

// Returns the number of parts of a split model by the name of its first part; 1 for any other name.
size_t count_parts(const std::string& name) {
  constexpr size_t kEnding = sizeof "-00001-of-00001.gguf" - 1, kDigits = 5, kBehind = sizeof ".gguf" - 1;
  if (name.size() < kEnding) return 1;
  const std::string digits = name.substr(name.size() - kBehind - kDigits, kDigits);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return 1;
  const size_t count = std::stoul(digits);
  return count >= 1 && name.ends_with(split_ending(1, static_cast<int64_t>(count))) ? count : 1;
}

// Adds what identifies the content of a file without reading it: path, size, inode and time of change. Returns false if
// the file is missing.
bool add_state(const fs::path& path, Sha256& digest) {
  struct stat state{};
  if (::stat(path.c_str(), &state) != 0) {
    if (errno == ENOENT) return false;
    io_error(path, "stat", errno);
  }
  std::string text = path.string() + '\0';
  for (const auto number :
       {static_cast<int64_t>(state.st_size), static_cast<int64_t>(state.st_dev), static_cast<int64_t>(state.st_ino),
        static_cast<int64_t>(state.st_mtim.tv_sec), static_cast<int64_t>(state.st_mtim.tv_nsec),
        static_cast<int64_t>(state.st_ctim.tv_sec), static_cast<int64_t>(state.st_ctim.tv_nsec)})
    text += std::to_string(number) + '\0';
  digest.update(std::string_view(text));
  return true;
}

// The number of the form in which this unit writes the files of a directory. Raise it when they change.
constexpr const char* kForm = " 3";

// Returns the name of the directory: the file's name, so that reports name the model, and a digest of the file's state.
// Another version of specdec may write other files, so its number is part of the digest.
std::string directory_name(const fs::path& file) {
  Sha256 digest;
  digest.update(std::string_view(kToolVersion));
  digest.update(std::string_view(kForm));
  const std::string name = file.filename().string();
  const size_t parts = count_parts(name);
  const std::string stem = parts == 1 ? file.stem().string() : name.substr(0, name.size() - split_ending(1, 1).size());
  for (size_t part = 1; part <= parts; ++part) {
    const fs::path path =
        parts == 1
            ? file
            : file.parent_path() / (stem + split_ending(static_cast<int64_t>(part), static_cast<int64_t>(parts)));
    if (!add_state(path, digest) && part == 1)
      throw Error(ErrorKind::kModel, path.string() + ": no such file");  // GgufFile reports other missing parts
  }
  return stem.substr(0, 128) + "-" + digest.hex().substr(0, 16);
}

void write_json(const fs::path& path, const Json& value, int indent) { write_file_atomic(path, value.dump(indent)); }

// Returns whether this directory exists. Throws Error(kIo) if others could have put another model in its place.
bool is_own_directory(const fs::path& directory) {
  struct stat state{};
  if (::lstat(directory.c_str(), &state) != 0) return false;
  if (!S_ISDIR(state.st_mode) || (state.st_uid != ::geteuid() && state.st_uid != 0) || (state.st_mode & 022) != 0)
    throw Error(
        ErrorKind::kIo,
        directory.string() + ": other users can write it: remove it, or set XDG_CACHE_HOME to a folder of your own");
  return true;
}

}  // namespace

fs::path real_file(const fs::path& gguf) {
  std::error_code ec;
  const fs::path real = fs::canonical(gguf, ec);
  if (ec) throw Error(ErrorKind::kModel, gguf.string() + ": cannot be found: " + ec.message());
  if (real.extension() == ".gguf") return real;
  return fs::canonical(fs::absolute(gguf).parent_path()) / gguf.filename();
}

fs::path model_directory_of(const fs::path& gguf) {
  const fs::path file = real_file(gguf), folder = cache_folder(), directory = folder / directory_name(file);
  if (is_own_directory(directory)) return directory;
  const GgufFile model(file);
  const Json config = make_config(model), generation = make_generation_config(model), tokenizer = make_tokenizer(model),
             tokenizer_config = make_tokenizer_config(model);
  if (directory != folder / directory_name(file))
    throw Error(ErrorKind::kNetwork, file.string() + " changed while it was read: try again");
  make_directories(folder);
  constexpr int64_t kAbandonedSeconds = 3600;
  remove_partials(folder, kAbandonedSeconds);
  publish_directory(directory, [&](const fs::path& tmp) {
    write_json(tmp / "config.json", config, 2);
    write_json(tmp / "generation_config.json", generation, 2);
    write_json(tmp / "tokenizer.json", tokenizer, -1);
    write_json(tmp / "tokenizer_config.json", tokenizer_config, 2);
    const size_t count = model.files().size();
    for (size_t i = 0; i < count; ++i) {
      std::error_code missing;
      const fs::path target = fs::canonical(model.files()[i]->path(), missing);
      if (missing)
        throw Error(ErrorKind::kModel, model.files()[i]->path().string() + ": cannot be found: " + missing.message());
      write_link_atomic(
          tmp / (count == 1 ? "model.gguf"
                            : "model" + split_ending(static_cast<int64_t>(i) + 1, static_cast<int64_t>(count))),
          target);
    }
  });
  return directory;
}

}  // namespace specdec::gguf
