#include "monitor/read/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/read/foreign_record.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kBlock = 1 << 18;  // bytes read at a time; small enough for the CPU's cache

std::string head_of(const InputFile& input, uint64_t offset) {
  std::string bytes(static_cast<size_t>(std::min<uint64_t>(256, offset)), '\0');
  input.read(0, std::as_writable_bytes(std::span(bytes)));
  return sha256_hex(bytes);
}

// Reads the lines of a file block by block and passes on their records.
class RecordReader {
 public:
  RecordReader(const InputFile& input, FilePosition& position, const std::function<void(const AcceptanceRecord&)>& take)
      : input_(input), position_(position), take_(take), buffer_(kMaxLine + kBlock) {}

  ReadFigures read() {
    for (uint64_t read_to = position_.offset; read_to < input_.size();) {
      const size_t fresh = static_cast<size_t>(std::min<uint64_t>(kBlock, input_.size() - read_to));
      input_.read(read_to, std::as_writable_bytes(std::span(buffer_).subspan(held_, fresh)));
      read_to += fresh;
      read_block({buffer_.data(), held_ + fresh});
    }
    return std::move(figures_);
  }

 private:
  // Reads the complete lines of the block at the start of the buffer. An incomplete last line is kept for the next
  // block.
  void read_block(std::string_view block) {
    size_t begin = 0;
    for (size_t end = block.find('\n', held_); end != std::string_view::npos; end = block.find('\n', begin)) {
      const std::string_view line = block.substr(begin, end - begin);
      position_.offset += line.size() + 1;
      begin = end + 1;
      if (std::exchange(skipping_, false)) continue;
      ++line_number_;
      if (line.empty()) continue;
      try {
        read_line(line);
      } catch (const Error& e) {
        broken(e.what());
      }
    }
    held_ = block.size() - begin;
    std::copy(block.begin() + static_cast<std::ptrdiff_t>(begin), block.end(), buffer_.begin());
    if (held_ > kMaxLine) {
      if (!std::exchange(skipping_, true)) {
        ++line_number_;
        broken("longer than 1 MiB");
      }
      position_.offset += held_;
      held_ = 0;
    }
  }

  void read_line(std::string_view line) {
    if (line.size() > kMaxLine) throw Error(ErrorKind::kData, "longer than 1 MiB");
    if (line.find("specdec.acceptance/") == std::string_view::npos) {
      for (const AcceptanceRecord& r : foreign_records(line, where_)) {
        take_(r);
        ++figures_.records;
      }
      return;
    }
    read_acceptance_record(line, where_, record_);
    take_(record_);
    ++figures_.records;
  }

  // Counts a broken line. `reason` comes from a record parser, and such reasons never repeat untrusted text.
  void broken(const std::string& reason) {
    if (++figures_.broken_lines == 1)
      figures_.first_problem =
          input_.path().string() + ": line " + std::to_string(line_number_) + " since the last check: " + reason;
  }

  const std::string where_ = "record";
  const InputFile& input_;
  FilePosition& position_;
  const std::function<void(const AcceptanceRecord&)>& take_;
  std::vector<char> buffer_;
  size_t held_ = 0;  // bytes of an incomplete line at the start of the buffer
  int64_t line_number_ = 0;
  bool skipping_ = false;  // inside a line that is too long, whose rest is ignored
  AcceptanceRecord record_;
  ReadFigures figures_;
};

// Returns whether `text` looks like an address without a scheme: host:port, or host.domain/metrics.
bool looks_like_a_host(const std::string& text) {
  const std::string host = text.substr(0, text.find('/'));
  const size_t colon = host.find(':');
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < host.size() &&
                        host.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return has_port || (host.find('.', 1) != std::string::npos && text.ends_with("/metrics"));
}

}  // namespace

std::vector<std::string> names_of(const std::vector<SecretUrl>& sources) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const SecretUrl& source : sources) {
    const int before = seen[source.shown()]++;
    names.push_back(source.shown() + (before ? " #" + std::to_string(before + 1) : ""));
  }
  return names;
}

std::vector<fs::path> record_files(const fs::path& source) {
  std::error_code ec;
  const fs::file_status status = fs::status(source, ec);
  if (fs::is_regular_file(status)) return {source};
  if (!fs::is_directory(status))
    throw Error(ErrorKind::kData,
                source.string() + ": " +
                    (fs::exists(status) ? "neither a file nor a directory" : "no such file or directory") +
                    ", expected acceptance records (*.jsonl)" +
                    (!fs::exists(status) && looks_like_a_host(source.string())
                         ? " (did you mean http://" + source.string() + "?)"
                         : ""));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(source))
    if (const std::string name = entry.path().filename().string();
        entry.is_regular_file() &&
        (name.ends_with(".jsonl") || (name.starts_with("sglang-request-metrics-") && name.ends_with(".log"))))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string file_identity(const fs::path& file) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0)
    throw Error(ErrorKind::kData, file.string() + ": no such file, expected acceptance records");
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

ReadFigures read_records(const fs::path& file, const std::string& identity, FilePosition& position,
                         const std::function<void(const AcceptanceRecord&)>& take) {
  const InputFile input(file, ErrorKind::kData);
  if (file_identity(file) != identity)
    throw Error(ErrorKind::kNetwork, file.string() + ": was rotated while it was opened: try again");
  if (position.offset > input.size() || (position.offset > 0 && head_of(input, position.offset) != position.head))
    position = {};
  if (position.offset == input.size()) return {};  // most files of a directory have nothing new
  ReadFigures figures = RecordReader(input, position, take).read();
  if (position.offset > 0) position.head = head_of(input, position.offset);
  return figures;
}

}  // namespace specdec::monitor
