#include "monitor/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/foreign_record.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kBlock = 1 << 18;  // stays in the CPU's cache while it is read

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
                    ", expected acceptance records (*.jsonl)");
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
  const auto head = [&](uint64_t offset) {
    std::string bytes(static_cast<size_t>(std::min<uint64_t>(256, offset)), '\0');
    input.read(0, std::as_writable_bytes(std::span(bytes)));
    return sha256_hex(bytes);
  };
  if (position.offset > input.size() || (position.offset > 0 && head(position.offset) != position.head)) position = {};
  ReadFigures figures;
  if (position.offset == input.size()) return figures;  // most files of a directory have nothing new
  int64_t line_number = 0;
  bool skipping = false;  // inside a line that is too long
  std::vector<char> buffer(kMaxLine + kBlock);
  size_t held = 0;  // bytes of an incomplete line at the start of the buffer
  AcceptanceRecord record;
  const std::string where = "record";
  // Record parsers state the problem without repeating the text they found.
  const auto broken = [&](const std::string& reason) {
    if (++figures.broken_lines == 1)
      figures.first_problem =
          file.string() + ": line " + std::to_string(line_number) + " since the last check: " + reason;
  };
  const auto read_line = [&](std::string_view line) {
    if (line.size() > kMaxLine) throw Error(ErrorKind::kData, "longer than 1 MiB");
    if (line.find("specdec.acceptance/") == std::string_view::npos) {
      for (const AcceptanceRecord& r : foreign_records(line, where)) {
        take(r);
        ++figures.records;
      }
      return;
    }
    read_acceptance_record(line, where, record);
    take(record);
    ++figures.records;
  };
  for (uint64_t read_to = position.offset; read_to < input.size();) {
    const size_t fresh = static_cast<size_t>(std::min<uint64_t>(kBlock, input.size() - read_to));
    input.read(read_to, std::as_writable_bytes(std::span(buffer).subspan(held, fresh)));
    read_to += fresh;
    const std::string_view block(buffer.data(), held + fresh);
    size_t begin = 0;
    for (size_t end = block.find('\n', held); end != std::string_view::npos; end = block.find('\n', begin)) {
      const std::string_view line = block.substr(begin, end - begin);
      position.offset += line.size() + 1;
      begin = end + 1;
      if (std::exchange(skipping, false)) continue;
      ++line_number;
      if (line.empty()) continue;
      try {
        read_line(line);
      } catch (const Error& e) {
        broken(e.what());
      }
    }
    held = block.size() - begin;
    std::copy(block.begin() + static_cast<std::ptrdiff_t>(begin), block.end(), buffer.begin());
    if (held > kMaxLine) {
      if (!std::exchange(skipping, true)) {
        ++line_number;
        broken("longer than 1 MiB");
      }
      position.offset += held;
      held = 0;
    }
  }
  if (position.offset > 0) position.head = head(position.offset);
  return figures;
}

}  // namespace specdec::monitor
