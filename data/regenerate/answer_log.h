// Stores the answers of an endpoint on disk as they arrive, so that an interrupted `data regenerate` can resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"

namespace specdec::data {

// The error that the endpoint gave instead of an answer.
struct AnswerProblem {
  int64_t turn = 0;    // number of the answer in its row, from 1
  int64_t status = 0;  // HTTP status; 0 = none
  std::string message;
};

// The new answers of a row.
struct Answer {
  std::string id;                    // id of the row
  std::vector<int32_t> tokens = {};  // the whole new row, prompt included
  std::vector<uint8_t> loss_mask = {};
  int64_t prompt_tokens = 0;
  std::string rejected = {};  // why the row has no answer; "" = it has one. If set, `tokens` is empty
  std::string ended = {};     // why the row ends before its last answer; "" = the row is complete
  int64_t turns = 0;          // number of new answers
  std::vector<TurnCalls> calls = {};
  std::optional<AnswerProblem> problem = {};  // the endpoint's error that led to `rejected` or `ended`
};

// A JSONL file: a header with the settings, then one line per answer. Not thread-safe.
class AnswerLog {
 public:
  // Creates the file. With `resume` the file may exist already: its answers are then read, and an incomplete last line
  // is dropped. Throws Error(kUsage) if the file exists and `resume` is false, or if its header differs from `settings`
  // (the message names the settings that differ); Error(kData) if the file is damaged; Error(kIo).
  AnswerLog(std::filesystem::path file, const Json& settings, bool resume);
  ~AnswerLog();
  AnswerLog(const AnswerLog&) = delete;
  AnswerLog& operator=(const AnswerLog&) = delete;

  void append(const Answer& answer);  // written and fdatasync'ed on return
  bool contains(const std::string& id) const { return answers_.count(id) != 0; }
  const Answer& at(const std::string& id) const { return answers_.at(id); }
  size_t size() const { return answers_.size(); }
  void remove();

 private:
  void read_existing(const Json& settings);
  void write_line(const Json& line);

  std::filesystem::path path_;
  int fd_ = -1;
  std::unordered_map<std::string, Answer> answers_;
};

}  // namespace specdec::data
