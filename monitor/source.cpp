#include "monitor/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/foreign_record.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kBlock = 1 << 20;

}  // namespace

std::vector<fs::path> record_files(const fs::path& source) {
  std::error_code ec;
  const fs::file_status status = fs::status(source, ec);
  if (fs::is_regular_file(status)) return {source};
  if (!fs::is_directory(status))
    throw Error(ErrorKind::kData, source.string() + ": " + (fs::exists(status) ? "neither a file nor a directory" : "no such file or directory") +
                                      ", expected acceptance records (*.jsonl)");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(source))
    if (const std::string name = entry.path().filename().string();
        entry.is_regular_file() && (name.ends_with(".jsonl") || (name.starts_with("sglang-request-metrics-") && name.ends_with(".log"))))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string file_identity(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) throw Error(ErrorKind::kData, file.string() + ": no such file, expected acceptance records");
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

ReadFigures read_records(const fs::path& file, const std::string& identity, FilePosition& position, const std::function<void(const AcceptanceRecord&)>& take) {
  const InputFile input(file, ErrorKind::kData);
  if (file_identity(file) != identity) throw Error(ErrorKind::kNetwork, file.string() + ": was rotated while it was opened: try again");
  const auto head = [&](uint64_t offset) {
    std::string bytes(static_cast<size_t>(std::min<uint64_t>(256, offset)), '\0');
    input.read(0, std::as_writable_bytes(std::span(bytes)));
    return sha256_hex(bytes);
  };
  if (position.offset > input.size() || (position.offset > 0 && head(position.offset) != position.head)) position = {};
  ReadFigures figures;
  int64_t line_number = 0;
  bool skipping = false;   // inside a line that is too long
  std::string buffer;
  uint64_t read_to = position.offset;
  const auto broken = [&](const std::string& reason) {
    if (++figures.broken_lines == 1) figures.first_problem = file.string() + ": line " + std::to_string(line_number) + " since the last check: " + reason;
  };
  while (read_to < input.size()) {
    const size_t take_bytes = static_cast<size_t>(std::min<uint64_t>(kBlock, input.size() - read_to));
    const size_t old = buffer.size();
    buffer.resize(old + take_bytes);
    input.read(read_to, std::as_writable_bytes(std::span(buffer.data() + old, take_bytes)));
    read_to += take_bytes;
    size_t begin = 0;
    for (size_t end = buffer.find('\n', old); end != std::string::npos; end = buffer.find('\n', begin)) {
      const std::string_view line(buffer.data() + begin, end - begin);
      position.offset += line.size() + 1;
      begin = end + 1;
      ++line_number;
      if (skipping) {
        skipping = false;
        continue;
      }
      if (line.empty()) continue;
      try {
        if (line.size() > kMaxLine) throw Error(ErrorKind::kData, "longer than 1 MiB");
        if (line.find("specdec.acceptance/") != std::string_view::npos) {
          take(acceptance_record_from_line(line, "record"));
          ++figures.records;
        } else {
          for (const AcceptanceRecord& record : foreign_records(line, "record")) {
            take(record);
            ++figures.records;
          }
        }
      } catch (const Error& e) {
        broken(e.what());
      }
    }
    buffer.erase(0, begin);
    if (buffer.size() > kMaxLine) {
      if (!skipping) broken("longer than 1 MiB");
      skipping = true;
      position.offset += buffer.size();
      buffer.clear();
    }
  }
  if (position.offset > 0) position.head = head(position.offset);
  return figures;
}

}  // namespace specdec::monitor
