#include "data/answer_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace specdec::data {

namespace {

constexpr size_t kMaxLogBytes = size_t{16} << 30;
const char kSchema[] = "specdec.regenerate/1";

[[noreturn]] void io_error(const fs::path& path, const char* action) {
  throw Error(ErrorKind::kIo, path.string() + ": " + action + ": " + std::strerror(errno));
}

Answer answer_from_json(const Json& line, const std::string& where) {
  Answer a;
  a.id = json_string(line, "id", where, ErrorKind::kData);
  a.rejected = json_string(line, "rejected", "", where, ErrorKind::kData);
  if (!a.rejected.empty()) return a;
  a.prompt_tokens = json_int(line, "prompt_tokens", {0, INT32_MAX}, where, ErrorKind::kData);
  const int64_t loss_from = json_int(line, "loss_from", {0, INT32_MAX}, where, ErrorKind::kData);
  const auto tokens = line.find("tokens");
  if (tokens == line.end() || !tokens->is_array()) throw Error(ErrorKind::kData, where + ": tokens: missing");
  for (const Json& t : *tokens) {
    if (!t.is_number_integer() || t.get<int64_t>() < 0 || t.get<int64_t>() > INT32_MAX)
      throw Error(ErrorKind::kData, where + ": tokens: expected token ids");
    a.tokens.push_back(t.get<int32_t>());
    a.loss_mask.push_back(static_cast<int64_t>(a.tokens.size()) > loss_from);
  }
  if (a.tokens.empty() || a.prompt_tokens > static_cast<int64_t>(a.tokens.size()))
    throw Error(ErrorKind::kData, where + ": prompt_tokens: more than tokens");
  return a;
}

}  // namespace

AnswerLog::AnswerLog(fs::path file, const Json& settings, bool resume) : path_(std::move(file)) {
  make_private_directory(path_.parent_path());
  const bool exists = fs::exists(path_);
  if (exists && !resume)
    throw Error(ErrorKind::kUsage,
                path_.string() + ": answers of an interrupted run: add --resume to keep them, or remove the file");
  if (exists) read_existing(settings);
  fd_ = open_file(path_, O_WRONLY | O_CREAT | O_APPEND);
  if (::lseek(fd_, 0, SEEK_END) == 0) {
    write_line({{"schema", kSchema}, {"settings", settings}});
    fsync_directory(path_.parent_path());
  }
}

AnswerLog::~AnswerLog() {
  if (fd_ >= 0) ::close(fd_);
}

void AnswerLog::read_existing(const Json& settings) {
  const std::string text = read_file(path_, kMaxLogBytes);
  size_t position = 0;
  for (int64_t number = 1;; ++number) {
    const size_t end = text.find('\n', position);
    if (end == std::string::npos) break;
    const std::string where = path_.string() + ":" + std::to_string(number);
    const Json line = parse_json(std::string_view(text).substr(position, end - position), where);
    if (number == 1) {
      require_schema(line, "regenerate", 1, where);
      const Json found = line.value("settings", Json::object());
      std::string differing;
      for (const auto& [key, value] : settings.items())
        if (found.value(key, Json()) != value) differing += (differing.empty() ? "" : ", ") + key;
      if (!differing.empty())
        throw Error(ErrorKind::kUsage, path_.string() + ": was made with other settings (" + differing +
                                           "): use the same ones, or remove the file");
    } else {
      Answer answer = answer_from_json(line, where);
      answers_.insert_or_assign(answer.id, std::move(answer));
    }
    position = end + 1;
  }
  // Drops a last line without a newline: the process was killed while it wrote that line, so append() never returned
  // for it.
  if (position < text.size() && ::truncate(path_.c_str(), static_cast<off_t>(position)) != 0)
    io_error(path_, "cannot cut off a torn line");
}

void AnswerLog::write_line(const Json& line) {
  write_all(fd_, canonical_json(line) + "\n", path_);
  flush_to_disk(fd_, path_);
}

void AnswerLog::append(const Answer& answer) {
  if (answer.rejected.empty()) {
    const auto loss_from = std::find(answer.loss_mask.begin(), answer.loss_mask.end(), 1) - answer.loss_mask.begin();
    write_line({{"id", answer.id},
                {"prompt_tokens", answer.prompt_tokens},
                {"loss_from", loss_from},
                {"tokens", answer.tokens}});
  } else {
    write_line({{"id", answer.id}, {"rejected", answer.rejected}});
  }
  answers_.insert_or_assign(answer.id, answer);
}

void AnswerLog::remove() {
  fs::remove(path_);
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace specdec::data
