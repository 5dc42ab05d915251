#include "data/regenerate.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/version.h"
#include "data/answer_log.h"
#include "data/openai_client.h"
#include "data/shard_reader.h"
#include "data/shard_writer.h"
#include "data/split.h"
#include "data/tokenise.h"

namespace specdec::data {

namespace {

constexpr int kFirstAttempts = 6;  // 15.5 s of waiting, besides what the attempts take

struct Job {
  std::string split;
  TokenRow row;
  int64_t max_tokens = 0;
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
    log_ = std::make_unique<AnswerLog>(progress_file(options_.out), settings(client.base_url()), options_.resume);
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

  // An endpoint that never answered is given up sooner than one that stops answering during the work, and each attempt
  // is logged.
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
      for (TokenRow& row : reader_.rows(split)) {
        const auto length = static_cast<int64_t>(row.tokens.size());
        int64_t room = options_.max_tokens > 0 ? options_.max_tokens : length - row.prompt_tokens;
        if (index_.max_length > 0) room = std::min(room, index_.max_length - row.prompt_tokens);
        jobs_.push_back({split, std::move(row), room});
      }
    result_.rows = static_cast<int64_t>(jobs_.size());
  }

  Json request_body(const Job& job) const {
    const SamplingOptions sampling = job.row.has_sampling ? job.row.sampling : SamplingOptions{};
    const std::vector<int32_t> prompt(job.row.tokens.begin(), job.row.tokens.begin() + job.row.prompt_tokens);
    Json body = {{"model", result_.model},
                 {"prompt", options_.prompt_as_text ? Json(prompt_text(prompt)) : Json(prompt)},
                 {"max_tokens", job.max_tokens},
                 {"temperature", options_.temperature.value_or(sampling.temperature)},
                 {"seed", (options_.seed ^ conversation_key(job.row.id)) >> 11},  // 53 bits: exact in every JSON reader
                 {"return_token_ids", true}};
    // Leaves out values that are the default, because strict endpoints refuse fields that they do not know.
    if (sampling.top_p < 1) body["top_p"] = sampling.top_p;
    if (sampling.top_k > 0) body["top_k"] = sampling.top_k;
    if (sampling.min_p > 0) body["min_p"] = sampling.min_p;
    return body;
  }

  // Returns the prompt as text, without BOS because the endpoint adds it.
  std::string prompt_text(std::vector<int32_t> prompt) const {
    if (!tokeniser_)
      throw Error(ErrorKind::kUsage, "prompts as text need --target-files: the tokenizer that made the token ids");
    const text::Tokenizer& t = tokeniser_->tokenizer();
    if (!prompt.empty() && prompt.front() == t.bos_id()) prompt.erase(prompt.begin());
    return t.decode(prompt, false);
  }

  // Returns the job's row with the answer of `choice` after its prompt, cut to the max_length of the data.
  TokenRow answered_row(const Job& job, const Json& choice, const std::string& where) const {
    TokenRow row = job.row;
    row.tokens.resize(static_cast<size_t>(row.prompt_tokens));
    row.loss_mask.assign(row.tokens.size(), 0);
    const std::vector<int32_t> prompt = row.tokens;
    if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array()) {
      for (const Json& id : *ids) {
        if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= index_.vocab_size)
          throw Error(ErrorKind::kData, where + ": token_ids: found " + id.dump() + ", expected ids below " +
                                            std::to_string(index_.vocab_size));
        row.tokens.push_back(id.get<int32_t>());
      }
      row.loss_mask.resize(row.tokens.size(), 1);
    } else {
      if (!tokeniser_)
        throw Error(ErrorKind::kData, where +
                                          ": the endpoint returns no token_ids: give --target-files MODEL, whose "
                                          "tokenizer makes them of the text");
      tokeniser_->tokenise_continuation(prompt_text(prompt), json_string(choice, "text", where, ErrorKind::kData), row);
    }
    const int32_t eos = tokeniser_ ? tokeniser_->tokenizer().eos_id() : -1;
    const auto reason = choice.find("finish_reason");
    if (eos >= 0 && reason != choice.end() && *reason == "stop" && row.tokens.back() != eos) {
      row.tokens.push_back(eos);
      row.loss_mask.push_back(1);
    }
    cut_row(row, index_.max_length);
    return row;
  }

  Answer ask(OpenAiClient& client, const Job& job) const {
    const std::string where = client.base_url() + "/completions";
    Answer answer{job.row.id, {}, {}, 0, ""};
    if (job.max_tokens <= 0 || job.row.prompt_tokens == 0) {
      answer.rejected = "no_room";
      return answer;
    }
    const HttpReply reply = client.post("/completions", request_body(job));
    if (reply.status == 400 || reply.status == 413 || reply.status == 422) {
      answer.rejected = "http_" + std::to_string(reply.status);
      return answer;
    }
    if (reply.status != 200) {
      const bool ours = reply.status == 401 || reply.status == 403 || reply.status == 404;
      throw Error(ours ? ErrorKind::kUsage : ErrorKind::kNetwork, where + ": " + describe(reply));
    }
    const Json body = parse_json(reply.body, where);
    const auto choices = body.find("choices");
    if (choices == body.end() || !choices->is_array() || choices->empty() || !(*choices)[0].is_object())
      throw Error(ErrorKind::kData, where + ": choices: expected a list with one object");
    TokenRow row = answered_row(job, (*choices)[0], where + ": choices[0]");
    if (check_learnable(row)) {
      answer.rejected = "empty_answer";
      return answer;
    }
    answer.tokens = std::move(row.tokens);
    answer.loss_mask = std::move(row.loss_mask);
    answer.prompt_tokens = row.prompt_tokens;
    return answer;
  }

  // Asks the endpoint for all answers that the log lacks. Workers take jobs by a shared counter, while the calling
  // thread reports progress. The first error stops all workers.
  void ask_all(const ProgressFn& progress) {
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr failure;
    size_t next = 0, finished = 0;
    std::string problem;  // of an attempt that failed since the last answer
    ClientOptions client_of_worker = client_options();
    client_of_worker.backoff.on_retry = [&](const net::Retry& retry) {
      const std::lock_guard lock(mutex);
      problem = net::readable(retry);
      changed.notify_one();
    };
    const auto work = [&] {
      try {
        OpenAiClient client(client_of_worker);
        for (;;) {
          size_t mine;
          {
            const std::lock_guard lock(mutex);
            while (next < jobs_.size() && log_->contains(jobs_[next].row.id)) ++next;
            if (failure || next == jobs_.size()) break;
            mine = next++;
          }
          const Answer answer = ask(client, jobs_[mine]);
          const std::lock_guard lock(mutex);
          log_->append(answer);
          problem.clear();
          ++result_.asked;
          changed.notify_one();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      ++finished;
      changed.notify_one();
    };
    const auto num_workers = static_cast<size_t>(options_.concurrency);
    {
      std::vector<std::jthread> workers;
      for (size_t i = 0; i < num_workers; ++i) workers.emplace_back(work);
      std::unique_lock lock(mutex);
      for (;;) {
        const bool is_last = finished == num_workers;
        if (progress) {
          const Progress now{"regenerate", static_cast<double>(log_->size()), static_cast<double>(jobs_.size()), "rows",
                             problem};
          lock.unlock();
          progress(now);
          lock.lock();
        }
        if (is_last) break;
        if (finished < num_workers) changed.wait(lock);
      }
    }
    if (failure) explain(failure);
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

  ShardIndex write(const fs::path& directory) {
    ShardWriter writer(directory);
    OutputFile rejects(directory / "rejects.jsonl");
    index_.rejects.clear();
    for (size_t i = 0; i < jobs_.size(); ++i) {
      TokenRow& row = jobs_[i].row;
      const Answer& answer = log_->at(row.id);
      if (!answer.rejected.empty()) {
        ++index_.rejects[answer.rejected];
        rejects.write(
            canonical_json(
                {{"file", options_.data}, {"line", i + 1}, {"reason", answer.rejected}, {"detail", "row " + row.id}}) +
            "\n");
        continue;
      }
      row.tokens = answer.tokens;
      row.loss_mask = answer.loss_mask;
      row.prompt_tokens = answer.prompt_tokens;
      if (options_.temperature) {
        row.has_sampling = true;
        row.sampling.temperature = *options_.temperature;
      }
      writer.add(jobs_[i].split, row);
    }
    rejects.finish();
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
  std::vector<Job> jobs_;
  std::unique_ptr<AnswerLog> log_;
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
