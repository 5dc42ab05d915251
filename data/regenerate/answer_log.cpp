#include "data/regenerate/answer_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace specdec::data {

namespace {

constexpr size_t kMaxLogBytes = size_t{16} << 30;
const char kSchema[] = "specdec.regenerate/2";

[[noreturn]] void io_error(const fs::path& path, const char* action) {
  throw Error(ErrorKind::kIo, path.string() + ": " + action + ": " + std::strerror(errno));
}

// Returns the learnt tokens (loss mask 1) as a list of ranges [begin, end).
Json learnt_ranges(const std::vector<uint8_t>& loss_mask) {
  Json ranges = Json::array();
  for (size_t t = 0; t < loss_mask.size(); ++t) {
    if (loss_mask[t] == 0) continue;
    if (ranges.empty() || ranges.back()[1] != t) ranges.push_back({t, t});
    ranges.back()[1] = t + 1;
  }
  return ranges;
}

std::vector<uint8_t> loss_mask_from_json(const Json& line, size_t size, const std::string& where) {
  std::vector<uint8_t> mask(size, 0);
  size_t from = 0;
  for (const Json& range : json_array(line, "learnt", size, where, ErrorKind::kData)) {
    const bool is_pair =
        range.is_array() && range.size() == 2 && range[0].is_number_unsigned() && range[1].is_number_unsigned();
    const size_t begin = is_pair ? range[0].get<size_t>() : size, end = is_pair ? range[1].get<size_t>() : 0;
    if (begin < from || begin >= end || end > size)
      throw Error(ErrorKind::kData, where + ": learnt: expected ranges of tokens in ascending order");
    std::fill(mask.begin() + static_cast<std::ptrdiff_t>(begin), mask.begin() + static_cast<std::ptrdiff_t>(end), 1);
    from = end;
  }
  return mask;
}

std::vector<int32_t> tokens_from_json(const Json& line, const std::string& where) {
  const auto tokens = line.find("tokens");
  if (tokens == line.end() || !tokens->is_array()) throw Error(ErrorKind::kData, where + ": tokens: missing");
  std::vector<int32_t> out;
  for (const Json& t : *tokens) {
    if (!t.is_number_integer() || t.get<int64_t>() < 0 || t.get<int64_t>() > INT32_MAX)
      throw Error(ErrorKind::kData, where + ": tokens: expected token ids");
    out.push_back(t.get<int32_t>());
  }
  return out;
}

Answer answer_from_json(const Json& line, const std::string& where) {
  constexpr ErrorKind kind = ErrorKind::kData;
  Answer a;
  a.id = json_string(line, "id", where, kind);
  a.rejected = json_string(line, "rejected", "", where, kind);
  a.ended = json_string(line, "ended", "", where, kind);
  if (line.contains("problem")) {
    const Json& problem = json_object(line, "problem", 16, where, kind);
    const std::string inside = where + ": problem";
    a.problem = AnswerProblem{json_int(problem, "turn", {1, INT32_MAX}, inside, kind),
                              json_int(problem, "status", {0, INT32_MAX}, inside, kind),
                              json_string(problem, "message", inside, kind)};
  }
  if (!a.rejected.empty()) return a;
  a.tokens = tokens_from_json(line, where);
  a.loss_mask = loss_mask_from_json(line, a.tokens.size(), where);
  a.turns = json_int(line, "turns", {1, INT32_MAX}, where, kind);
  a.prompt_tokens = json_int(line, "prompt_tokens", {0, INT32_MAX}, where, kind);
  if (a.tokens.empty() || a.prompt_tokens > static_cast<int64_t>(a.tokens.size()))
    throw Error(kind, where + ": prompt_tokens: more than tokens");
  if (line.contains("calls")) a.calls = turn_calls_from_json(line, static_cast<int64_t>(a.tokens.size()), where);
  return a;
}

Json to_json(const Answer& a) {
  Json line = {{"id", a.id}};
  if (a.problem)
    line["problem"] = {{"turn", a.problem->turn}, {"status", a.problem->status}, {"message", a.problem->message}};
  if (!a.rejected.empty()) {
    line["rejected"] = a.rejected;
    return line;
  }
  line.update({{"prompt_tokens", a.prompt_tokens},
               {"learnt", learnt_ranges(a.loss_mask)},
               {"tokens", a.tokens},
               {"turns", a.turns}});
  if (!a.ended.empty()) line["ended"] = a.ended;
  if (!a.calls.empty()) line["calls"] = to_json(a.calls);
  return line;
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
      require_schema(line, "regenerate", 2, where);
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
  write_line(to_json(answer));
  answers_.insert_or_assign(answer.id, answer);
}

void AnswerLog::remove() {
  fs::remove(path_);
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace specdec::data
