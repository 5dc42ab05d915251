#include "data/regenerate/regenerate.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "base/version.h"
#include "data/regenerate/answer_log.h"
#include "data/regenerate/openai_client.h"
#include "data/regenerate/row_regenerator.h"
#include "data/shards/shard_reader.h"
#include "data/shards/shard_writer.h"
#include "data/tokenise.h"

namespace specdec::data {

namespace {

constexpr int kFirstAttempts = 6;  // for the first request; the waits between the attempts sum to 15.5 s
constexpr double kProbeSeconds = 10;
constexpr size_t kMostWithoutAnswer = 8;  // if this many consecutive conversations fail, the run ends

struct Job {
  std::string split;
  TokenRow row;
};

class Regenerate {
 public:
  Regenerate(const RegenerateOptions& options, const std::function<void(double)>& sleep)
      : options_(options), sleep_(sleep), reader_(options.data) {
    index_ = reader_.index();
    if (options.target.empty()) return;
    tokeniser_.emplace(options.target);
    const Fingerprint target = fingerprint_model(options.target);
    if (target.tokenizer != index_.tokenizer_digest)
      throw Error(ErrorKind::kData, options.data + ": was tokenised for another tokenizer than the one of " +
                                        options.target + ": run data ingest for this target");
    index_.target_id = target.id;
  }

  RegenerateResult run(const ProgressFn& progress) {
    OpenAiClient client(first_contact());
    log(LogLevel::kInfo, "connecting to " + client.base_url());
    result_.model = options_.model.empty() ? client.first_model() : options_.model;
    plan_jobs();
    settings_ = settings(client.base_url());
    if (options_.resume && !fs::exists(progress_file(options_.out)) && is_finished()) return std::move(result_);
    log_ = std::make_unique<AnswerLog>(progress_file(options_.out), settings_, options_.resume);
    result_.reused = static_cast<int64_t>(log_->size());
    ask_all(progress);
    publish_shards(options_.out, [this](const fs::path& directory) { return write(directory); });
    log_->remove();
    return std::move(result_);
  }

 private:
  ClientOptions client_options() const {
    ClientOptions o;
    o.url = options_.url;
    o.api_key = options_.api_key;
    o.request_timeout_s = options_.request_timeout_s;
    o.backoff.sleep = sleep_;
    return o;
  }

  // Options for the first request: an endpoint that has never answered is retried fewer times than one that stops
  // answering during the work, and each attempt is logged.
  ClientOptions first_contact() const {
    ClientOptions o = client_options();
    o.backoff.max_attempts = kFirstAttempts;
    o.backoff.on_retry = [url = SecretUrl(options_.url).shown()](const net::Retry& retry) {
      log(LogLevel::kWarn, url + ": " + net::readable(retry));
    };
    return o;
  }

  // Returns the settings that the answers depend on. A progress file made with other settings must not be continued.
  Json settings(const std::string& base_url) const {
    const bool local = !options_.target.empty();
    return {{"data_digest", reader_.digest()},
            {"target_id", local ? index_.target_id : ""},
            {"endpoint",
             local ? "" : base_url + " " + result_.model},  // the port of a local server changes from run to run
            {"temperature", options_.temperature ? Json(*options_.temperature) : Json(nullptr)},
            {"max_tokens", options_.max_tokens},
            {"seed", options_.seed},
            {"prompt_as_text", options_.prompt_as_text}};
  }

  void plan_jobs() {
    for (const std::string split : {"train", "holdout"})
      for (TokenRow& row : reader_.rows(split)) jobs_.push_back({split, std::move(row)});
    result_.rows = static_cast<int64_t>(jobs_.size());
  }

  // Returns whether OUT has the answers of a finished run with the same settings, and if so loads its result into
  // result_. Returns false for an output that cannot be read or has other settings; the output is then replaced.
  bool is_finished() {
    const fs::path file = fs::path(options_.out) / kRegeneratedFile;
    try {
      const Json found = read_json(file, ErrorKind::kData);
      require_schema(found, "regenerated", 1, file.string());
      if (found.value("settings", Json()) != settings_) return false;
      const ShardReader made(options_.out);
      made.rows("all");  // checks the digests
      result_.index = made.index();
      result_.turns = json_int(found, "turns", {0, INT64_MAX}, file.string(), ErrorKind::kData);
      result_.ended = json_counts(found, "ended", file.string(), ErrorKind::kData);
    } catch (const Error&) {
      return false;
    }
    result_.reused = result_.rows;
    return true;
  }

  // Requests all answers that the log lacks. Workers take jobs by a shared counter, while the calling thread reports
  // progress. The first error stops all workers.
  void ask_all(const ProgressFn& progress) {
    const RowRegenerator rows(options_, result_.model, index_, tokeniser_ ? &*tokeniser_ : nullptr);
    for (const Job& job : jobs_)
      if (log_->contains(job.row.id)) {
        count(log_->at(job.row.id));
        answers_ += log_->at(job.row.id).rejected.empty();
      }
    began_ = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> workers;
      for (int i = 0; i < options_.concurrency; ++i) workers.emplace_back([&] { work(rows); });
      std::unique_lock lock(mutex_);
      for (;;) {
        const bool is_last = finished_ == options_.concurrency;
        if (progress) {
          const Progress now = state();
          lock.unlock();
          progress(now);
          lock.lock();
        }
        if (is_last) break;
        if (finished_ < options_.concurrency) changed_.wait(lock);
      }
    }
    if (!failure_) settle_rest();
    if (failure_) explain(failure_);
  }

  void work(const RowRegenerator& rows) {
    try {
      ClientOptions options = client_options();
      options.backoff.on_retry = [this](const net::Retry& retry) {
        const std::lock_guard lock(mutex_);
        problem_ = net::readable(retry);
        changed_.notify_one();
      };
      OpenAiClient client(options);
      for (;;) {
        size_t mine;
        {
          const std::lock_guard lock(mutex_);
          while (next_ < jobs_.size() && log_->contains(jobs_[next_].row.id)) ++next_;
          if (failure_ || next_ == jobs_.size()) break;
          mine = next_++;
        }
        try {
          const Answer answer = rows.answer(client, jobs_[mine].row);
          const std::lock_guard lock(mutex_);
          take(answer);
        } catch (const NoAnswer& e) {
          if (e.problem.status == 0 && !is_up()) throw;
          const std::lock_guard lock(mutex_);
          set_aside({.id = jobs_[mine].row.id, .rejected = "no_answer", .problem = e.problem}, e);
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ++finished_;
    changed_.notify_one();
  }

  // Returns whether the endpoint answers HTTP requests at all. If it does, a failed request is a problem of its row and
  // not of the endpoint.
  bool is_up() const {
    ClientOptions options = client_options();
    options.request_timeout_s = kProbeSeconds;
    OpenAiClient client(options);
    const std::string& base = client.base_url();
    return client.probe(base.substr(base.find('/', base.find("//") + 2)) + "/models").status != 0;
  }

  // Stores an answer, or the refusal of a row. Before the first answer, a refusal may be caused by the settings rather
  // than by the row, so the refusal is set aside and not stored yet.
  void take(const Answer& answer) {
    problem_.clear();
    if (!answer.rejected.empty() && answer.problem && answers_ == 0)
      return set_aside(answer, Error(ErrorKind::kUsage, options_.url + ": " + answer.problem->message));
    if (answer.rejected.empty()) {
      ++answers_;
      settle_rest();
    }
    keep(answer);
  }

  void keep(const Answer& answer) {
    log_->append(answer);
    count(answer);
    for (const uint8_t learnt : answer.loss_mask) tokens_ += learnt;
    ++result_.asked;
    changed_.notify_one();
  }

  // Collects rows that got no answer. They are stored as rejected when a later row gets an answer, because that shows
  // that these rows, and not the endpoint, were the cause. Throws `error` when kMostWithoutAnswer rows are collected.
  void set_aside(Answer answer, const Error& error) {
    problem_ = answer.problem->message;
    aside_.push_back(std::move(answer));
    changed_.notify_one();
    if (aside_.size() >= kMostWithoutAnswer)
      throw Error(error.kind(), std::string(error.what()) + " (" + std::to_string(kMostWithoutAnswer) +
                                    " conversations in a row got no answer)");
  }

  void settle_rest() {
    const bool refused =
        std::all_of(aside_.begin(), aside_.end(), [](const Answer& a) { return a.rejected != "no_answer"; });
    if (answers_ == 0 && !refused) {
      failure_ = std::make_exception_ptr(Error(
          ErrorKind::kNetwork, options_.url + ": no conversation got an answer: " + aside_.back().problem->message));
      return;
    }
    for (const Answer& answer : std::exchange(aside_, {})) keep(answer);
  }

  void count(const Answer& answer) {
    result_.turns += answer.turns;
    if (!answer.ended.empty()) ++result_.ended[answer.ended];
    if (answer.problem) ++errors_;
  }

  Progress state() const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    const std::string text = decimals(seconds > 0 ? static_cast<double>(tokens_) / seconds : 0, 0) + " tokens/s · " +
                             std::to_string(errors_ + static_cast<int64_t>(aside_.size())) + " errors";
    return {.stage = "regenerate",
            .done = static_cast<double>(log_->size()),
            .total = static_cast<double>(jobs_.size()),
            .unit = "conversations",
            .detail = text + (problem_.empty() ? "" : " · " + problem_)};
  }

  [[noreturn]] void explain(const std::exception_ptr& failure) const {
    try {
      std::rethrow_exception(failure);
    } catch (const Error& e) {
      throw Error(e.kind(), std::string(e.what()) + " (" + std::to_string(log_->size()) + " of " +
                                std::to_string(jobs_.size()) + " answers are kept in " +
                                progress_file(options_.out).string() + ": run again with --resume)");
    }
  }

  // Returns the line of rejects.jsonl for a row that the endpoint refused or whose answers end early.
  std::string reject_line(size_t job, const Answer& answer) const {
    Json line = {{"file", options_.data},
                 {"line", job + 1},
                 {"id", answer.id},
                 {"reason", answer.rejected.empty() ? answer.ended : answer.rejected},
                 {"kept_turns", answer.turns}};
    if (answer.problem)
      line.update(
          {{"turn", answer.problem->turn}, {"status", answer.problem->status}, {"detail", answer.problem->message}});
    return canonical_json(line) + "\n";
  }

  ShardIndex write(const fs::path& directory) {
    ShardWriter writer(directory);
    OutputFile rejects(directory / "rejects.jsonl");
    index_.rejects.clear();
    for (size_t i = 0; i < jobs_.size(); ++i) {
      TokenRow& row = jobs_[i].row;
      const Answer& answer = log_->at(row.id);
      if (!answer.rejected.empty() || !answer.ended.empty()) rejects.write(reject_line(i, answer));
      if (!answer.rejected.empty()) {
        ++index_.rejects[answer.rejected];
        continue;
      }
      row.tokens = answer.tokens;
      row.loss_mask = answer.loss_mask;
      row.prompt_tokens = answer.prompt_tokens;
      row.calls = answer.calls;
      if (options_.temperature) {
        row.has_sampling = true;
        row.sampling.temperature = *options_.temperature;
      }
      writer.add(jobs_[i].split, row);
    }
    rejects.finish();
    const Json made = {{"schema", "specdec.regenerated/1"},
                       {"settings", settings_},
                       {"turns", result_.turns},
                       {"ended", result_.ended}};
    write_file_atomic(directory / kRegeneratedFile, made.dump(1) + "\n");
    index_.shards = writer.finish();
    if (index_.shards.empty())
      throw Error(ErrorKind::kData,
                  options_.data + ": the endpoint answered none of the " + std::to_string(jobs_.size()) + " rows");
    index_.written_by = options_.target.empty() ? result_.model : "target";
    index_.truncated_rows = index_.dropped_tokens = 0;
    index_.sources = {{"index.json", reader_.digest()}};
    index_.tool_version = kToolVersion;
    result_.index = index_;
    return index_;
  }

  const RegenerateOptions& options_;
  const std::function<void(double)>& sleep_;
  const ShardReader reader_;
  std::optional<RowTokeniser> tokeniser_;
  ShardIndex index_;
  RegenerateResult result_;
  Json settings_;
  std::vector<Job> jobs_;

  // The members below are shared by the workers. `mutex_` guards them, the log and the counts of result_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<AnswerLog> log_;
  std::exception_ptr failure_;
  size_t next_ = 0;            // index of the next job to take
  int finished_ = 0;           // workers that have ended
  std::vector<Answer> aside_;  // rows without an answer since the last row that got one
  std::string problem_;        // message of the last failed attempt; "" after an answer
  int64_t answers_ = 0, tokens_ = 0, errors_ = 0;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace

fs::path progress_file(const fs::path& out) {
  fs::path target = fs::absolute(out).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  return target.string() + ".progress.jsonl";
}

RegenerateResult regenerate(const RegenerateOptions& options, const ProgressFn& progress,
                            const std::function<void(double)>& sleep) {
  validate(options);
  require_replaceable(options.out);
  return Regenerate(options, sleep).run(progress);
}

}  // namespace specdec::data
