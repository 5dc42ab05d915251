#include "deploy/serve/schedule/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/schema/acceptance_record.h"
#include "base/schema/traffic_record.h"

namespace specdec::deploy {

namespace {

constexpr double kLookAgain = 10;  // seconds between two measurements of record_dir's size while the quota is reached
constexpr char kPartial[] = ".partial";

std::filesystem::path made(const std::filesystem::path& directory) {
  make_private_directory(directory);
  return directory;
}

std::string published_name(const std::filesystem::path& partial) {
  std::string name = partial.string();
  name.resize(name.size() - (sizeof kPartial - 1));
  return name;
}

// Renames a complete file to its published name. After a crash the file is either durable under that name or absent:
// the file is fsynced, renamed, and its directory is fsynced.
void publish(const std::filesystem::path& partial) {
  const int fd = open_file(partial, O_RDONLY);
  try {
    flush_to_disk(fd, partial);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  rename_file(partial, published_name(partial));
}

// Publishes a file that a killed process left, by way of a copy. If an fsync by that process failed, another fsync of
// the same file could succeed although bytes are not on the disk. A new copy has no such bytes.
void publish_left_over(const std::filesystem::path& partial) {
  const std::filesystem::path fresh = partial.string() + ".copy";
  copy_regular_file(partial, fresh, ErrorKind::kIo);
  rename_file(fresh, published_name(partial));
  remove_tree(partial);
}

uint64_t bytes_under(const std::filesystem::path& directory) {
  uint64_t sum = 0;
  std::error_code ec;
  for (std::filesystem::recursive_directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone;  // the file was removed after it was listed
    if (const auto bytes = it->is_regular_file(gone) ? it->file_size(gone) : 0; !gone) sum += bytes;
  }
  return sum;
}

std::string record_id(const FinishedAnswer& answer) {
  return answer.request->id + (answer.request->choices() > 1 ? "-" + std::to_string(answer.choice) : "");
}

TrafficRecord traffic_record(const FinishedAnswer& answer, const std::string& writer) {
  const GenerationRequest& request = *answer.request;
  TrafficRecord record;
  record.id = record_id(answer);
  record.conversation = request.conversation_id();
  record.time = request.time;
  record.domain = request.domain;
  record.messages = request.messages;
  if (request.messages.empty()) {
    const size_t prompt = answer.choice / static_cast<size_t>(request.n);
    record.prompt = request.texts[prompt];
    record.response = answer.text;
    record.prompt_token_ids = request.prompts[prompt];
  } else {
    record.messages.push_back({"assistant", request.answer_prefix + answer.text});
    record.tools = request.tools;
    record.template_kwargs = request.template_kwargs;
  }
  record.token_ids = answer.token_ids;
  record.sampling = request.options.sampling;
  record.writer = writer;
  record.finish_reason = answer.result.ended_by_request ? "stop_string" : to_string(answer.result.reason);
  return record;
}

std::string draft_of(const FinishedAnswer& answer, const RecorderOptions& options) {
  return answer.result.draft.empty() ? options.draft.substr(0, kDraftLabel) : answer.result.draft;
}

RejectRecord reject_record(const FinishedAnswer& answer, const RecorderOptions& options) {
  const GenerationRequest& request = *answer.request;
  return {record_id(answer),
          request.conversation_id(),
          request.time,
          request.options.sampling.temperature,
          draft_of(answer, options),
          options.target.substr(0, kDraftLabel),
          answer.result.rejects};
}

AcceptanceRecord acceptance_record(const FinishedAnswer& answer, const RecorderOptions& options) {
  AcceptanceRecord record;
  record.time = answer.request->time;
  record.segment = answer.request->domain;
  record.temperature = answer.request->options.sampling.temperature;
  record.constrained = answer.request->options.rules && answer.request->options.rules->constraint;
  record.target = options.target.substr(0, kDraftLabel);
  record.draft = draft_of(answer, options);
  record.counts = answer.result.counts;
  return record;
}

}  // namespace

void require_no_other_recorder(const fs::path& directory) {
  if (fs::exists(directory / ".lock")) const FileLock lock(directory / ".lock");
}

RotatingLog::RotatingLog(std::filesystem::path directory, std::string stem, Limits limits, const Clock& clock)
    : directory_(made(directory)), stem_(std::move(stem)), limits_(limits), clock_(clock), lock_(directory_ / ".lock") {
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    if (std::filesystem::is_regular_file(entry.symlink_status()) &&
        entry.path().string().ends_with(std::string(".jsonl") + kPartial))
      left.push_back(entry.path());
  for (const auto& path : left) {
    try {
      publish_left_over(path);
    } catch (const Error& e) {  // retried at the next start; faults of recording never stop a server
      log(LogLevel::kError, e.what());
    }
  }
}

RotatingLog::~RotatingLog() {
  try {
    close();
  } catch (const std::exception& e) {
    log(LogLevel::kError, e.what());
  }
}

void RotatingLog::append(const std::string& line) {
  if (open_.empty()) {
    // Names contain time, process id and a running number, so they sort by age. They may collide if a container
    // restarts within a second.
    std::string time = format_utc(clock_.unix_seconds());
    std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
    std::filesystem::path done;
    do {
      const std::string number = format("%06lld", static_cast<long long>(sequence_++));
      done = directory_ / (stem_ + "-" + time + "-" + std::to_string(::getpid()) + "-" + number + ".jsonl");
    } while (std::filesystem::exists(done));
    open_ = done.string() + kPartial;
    bytes_ = 0;
    opened_ = clock_.seconds();
  }
  append_line(open_, line);
  bytes_ += line.size() + 1;
  if (bytes_ >= limits_.bytes) close();
}

void RotatingLog::rotate_if_old() {
  if (!open_.empty() && clock_.seconds() - opened_ >= limits_.seconds) close();
}

void RotatingLog::close() {
  if (open_.empty()) return;
  const std::filesystem::path done = std::exchange(open_, {});
  std::error_code ec;
  if (std::filesystem::exists(done, ec)) publish(done);
}

Recorder::Recorder(RecorderOptions options, Metrics& metrics, const Clock& clock)
    : options_(std::move(options)), metrics_(metrics), clock_(clock) {
  if (!options_.record_dir.empty()) {
    traffic_ = std::make_unique<RotatingLog>(options_.record_dir, "traffic", options_.traffic, clock_);
    acceptance_ = std::make_unique<RotatingLog>(std::filesystem::path(options_.record_dir) / "acceptance", "acceptance",
                                                options_.acceptance, clock_);
    if (options_.rejects)
      rejects_ = std::make_unique<RotatingLog>(std::filesystem::path(options_.record_dir) / "rejects", "rejects",
                                               options_.traffic, clock_);
    held_bytes_ = bytes_under(options_.record_dir);
    looked_at_ = clock_.seconds();
  }
  if (!options_.acceptance_log.empty()) {
    // Opens the file once, so that an invalid path is refused now instead of at the first answer.
    with_context("--acceptance-log",
                 [&] { ::close(open_file(options_.acceptance_log, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK)); });
  }
  if (traffic_ || !options_.acceptance_log.empty()) thread_ = std::thread([this] { work(); });
}

Recorder::~Recorder() { stop(); }

void Recorder::record(const FinishedAnswer& answer) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (waiting_.size() < options_.pending) {
      waiting_.push_back(answer);
      ready_.notify_one();
      return;
    }
  }
  lost("the disk is slower than the traffic");
}

void Recorder::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

void Recorder::work() {
  for (;;) {
    std::deque<FinishedAnswer> batch;
    bool last = false;
    {
      std::unique_lock lock(mutex_);
      ready_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_ || !waiting_.empty(); });
      batch.swap(waiting_);
      last = stopping_;
    }
    for (const FinishedAnswer& answer : batch) {
      try {
        write(answer);
      } catch (const std::exception& e) {
        lost(e.what());
      }
    }
    try {
      for (RotatingLog* log : {traffic_.get(), acceptance_.get(), rejects_.get()}) {
        if (log && last) log->close();
        if (log) log->rotate_if_old();
      }
    } catch (const std::exception& e) {
      lost(e.what());
    }
    if (last) return;
  }
}

void Recorder::write(const FinishedAnswer& answer) {
  if (traffic_) append(*traffic_, canonical_json(to_json(traffic_record(answer, options_.target))));
  if (rejects_ && !answer.result.rejects.empty()) append(*rejects_, to_line(reject_record(answer, options_)));
  const AcceptanceCounts& counts = answer.result.counts;
  if (counts.steps == 0 && counts.plain_steps == 0) return;
  const std::string line = to_line(acceptance_record(answer, options_));
  if (acceptance_) append(*acceptance_, line);
  if (!options_.acceptance_log.empty()) append_line(options_.acceptance_log, line);
}

void Recorder::append(RotatingLog& log, const std::string& line) {
  const uint64_t quota = options_.quota_bytes, bytes = line.size() + 1;
  if (quota > 0 && held_bytes_ + bytes > quota && clock_.seconds() - looked_at_ >= kLookAgain) {
    held_bytes_ = bytes_under(options_.record_dir);
    looked_at_ = clock_.seconds();
  }
  if (quota > 0 && held_bytes_ + bytes > quota)
    throw Error(ErrorKind::kIo, options_.record_dir + ": " + std::to_string(held_bytes_) + " bytes, the quota is " +
                                    std::to_string(quota) + ": move recorded files away or raise --record-quota");
  log.append(line);
  held_bytes_ += bytes;
}

void Recorder::lost(const std::string& why) {
  metrics_.record_lost();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(complained_, true)) log(LogLevel::kError, "records are being lost (logged once): " + why);
}

}  // namespace specdec::deploy
