#include "distill/labels/label_endpoint.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "data/regenerate/openai_client.h"
#include "data/shards/shard_reader.h"
#include "distill/labels/label_files.h"

namespace specdec::distill {

namespace {

// Labels are written in the order of the rows. At most this many labelled rows wait for an earlier row's labels.
constexpr int64_t kRowsAhead = 256;
constexpr int64_t kRefusedAtFirst = 8;  // the run fails if this many rows are refused before any is answered
constexpr JsonLimits kReplyLimits{.max_bytes = size_t{256} << 20, .max_values = size_t{1} << 25};

// Parses "token_id:123"; returns -1 for any other text.
int32_t token_id(const std::string& text) {
  constexpr std::string_view kPrefix = "token_id:";
  int32_t id = -1;
  if (!text.starts_with(kPrefix)) return -1;
  const char *begin = text.data() + kPrefix.size(), *end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, id);
  return error == std::errc() && stop == end && id >= 0 ? id : -1;
}

[[noreturn]] void no_ids(const std::string& where, const std::string& found) {
  throw Error(ErrorKind::kData, where + ": expected texts such as token_id:7, found '" + found.substr(0, 40) +
                                    "': the endpoint does not offer return_tokens_as_token_ids (specdec serve and vLLM "
                                    "do)");
}

std::vector<TokenLogprob> read_top(const Json& top, const std::string& where) {
  if (!top.is_object()) throw Error(ErrorKind::kData, where + ": expected an object of tokens and log-probabilities");
  std::vector<TokenLogprob> tokens;
  for (const auto& [text, value] : top.items()) {
    const int32_t id = token_id(text);
    if (id < 0) no_ids(where, text);
    if (!value.is_number()) throw Error(ErrorKind::kData, where + ": " + text + ": expected a number");
    tokens.push_back({id, value.get<float>()});
  }
  return tokens;
}

// Reads the labels of a row from choices[0].logprobs.
RowLabels read_labels(const Json& logprobs, const TokenRow& row, const LabelIndex& index, const std::string& where) {
  const auto lists = [&](const char* key) -> const Json& {
    const Json& list = json_array(logprobs, key, size_t{1} << 24, where, ErrorKind::kData);
    if (list.size() < row.tokens.size())
      throw Error(ErrorKind::kData, where + ": " + key + ": found " + std::to_string(list.size()) + " entries for " +
                                        std::to_string(row.tokens.size()) +
                                        " tokens: the endpoint does not offer echo "
                                        "with logprobs");
    return list;
  };
  const Json &tokens = lists("tokens"), &top = lists("top_logprobs");
  RowLabels out;
  for (size_t t = 0; t < row.tokens.size(); ++t) {
    const std::string at = where + ": position " + std::to_string(t);
    const std::string text = tokens[t].is_string() ? tokens[t].get<std::string>() : "";
    const int32_t id = token_id(text);
    if (id < 0) no_ids(at, text);
    if (id != row.tokens[t])
      throw Error(ErrorKind::kData, at + ": the endpoint read token " + std::to_string(id) + ", the row has " +
                                        std::to_string(row.tokens[t]));
    if (t > 0 && row.loss_mask[t] == 1) append_position(read_top(top[t], at + ": top_logprobs"), index, at, out);
  }
  return out;
}

class EndpointLabels {
 public:
  EndpointLabels(const LabelOptions& options, const std::function<void(double)>& sleep)
      : options_(options), sleep_(sleep), reader_(options.data) {}

  LabelResult run(const ProgressFn& progress) {
    LabelIndex index = new_label_index(options_, reader_);
    data::OpenAiClient client(client_options());
    log(LogLevel::kInfo, "connecting to " + client.base_url());
    index.model = options_.model.empty() ? client.first_model() : options_.model;
    writer_.emplace(options_.out, index, options_.resume);
    result_.kept = next_ = writer_->next_row();
    rows_ = reader_.rows("all");
    ask_all(progress);
    writer_->finish();
    result_.index = writer_->index();
    return std::move(result_);
  }

 private:
  data::ClientOptions client_options() const {
    data::ClientOptions o;
    o.url = options_.url;
    o.api_key = options_.api_key;
    o.request_timeout_s = options_.request_timeout_s;
    o.max_response_bytes = kReplyLimits.max_bytes;
    o.backoff.sleep = sleep_;
    return o;
  }

  // Requests the labels of a row. Returns empty labels if the row has no position in the loss or if the endpoint
  // refuses the request.
  RowLabels ask(data::OpenAiClient& client, const TokenRow& row) {
    bool learns = false;
    for (size_t t = 1; t < row.loss_mask.size(); ++t) learns |= row.loss_mask[t] == 1;
    if (!learns) return {};
    const std::string where = client.base_url() + "/completions";
    const data::HttpReply reply = client.post("/completions", {{"model", writer_->index().model},
                                                               {"prompt", row.tokens},
                                                               {"max_tokens", 0},
                                                               {"echo", true},
                                                               {"logprobs", writer_->index().top_k},
                                                               {"return_tokens_as_token_ids", true}});
    if (reply.status == 400 || reply.status == 413 || reply.status == 422) {
      refuse(row, where + ": " + data::describe(reply));
      return {};
    }
    if (reply.status != 200) {
      const bool ours = reply.status == 401 || reply.status == 403 || reply.status == 404;
      throw Error(ours ? ErrorKind::kUsage : ErrorKind::kNetwork, where + ": " + data::describe(reply));
    }
    const Json body = parse_json(reply.body, where, ErrorKind::kData, kReplyLimits);
    const Json& choices = json_array(body, "choices", 1 << 10, where, ErrorKind::kData);
    if (choices.empty() || !choices[0].is_object() || !choices[0].contains("logprobs"))
      throw Error(ErrorKind::kData, where + ": choices: expected an object with logprobs");
    RowLabels labels = read_labels(choices[0]["logprobs"], row, writer_->index(), where + ": row " + row.id);
    const std::lock_guard lock(mutex_);
    ++answered_;
    return labels;
  }

  void refuse(const TokenRow& row, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (++result_.refused <= 3) log(LogLevel::kWarn, "row " + row.id + " gets no labels: " + what);
    if (answered_ == 0 && result_.refused >= kRefusedAtFirst)
      throw Error(ErrorKind::kUsage,
                  what + " (the endpoint refused the first " + std::to_string(kRefusedAtFirst) + " rows)");
  }

  void work() {
    try {
      data::OpenAiClient client(client_options());
      for (;;) {
        int64_t mine;
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return failure_ || next_ < writer_->next_row() + kRowsAhead; });
          if (failure_ || next_ == static_cast<int64_t>(rows_.size())) break;
          mine = next_++;
        }
        RowLabels labels = ask(client, rows_[static_cast<size_t>(mine)]);
        const std::lock_guard lock(mutex_);
        done_.emplace(mine, std::move(labels));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ++finished_;
    changed_.notify_all();
  }

  // Worker threads request labels row by row, while the calling thread writes the labels in row order and reports
  // progress. The first error of any thread stops all workers.
  void ask_all(const ProgressFn& progress) {
    bool wrote_all = true;  // false after a write error; then flush() is not called
    {
      std::vector<std::jthread> workers;
      for (int i = 0; i < options_.concurrency; ++i) workers.emplace_back([this] { work(); });
      try {
        write_in_order(progress);
      } catch (...) {
        wrote_all = false;
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
        changed_.notify_all();
      }
    }
    if (!failure_) return;
    if (wrote_all) writer_->flush();
    explain();
  }

  void write_in_order(const ProgressFn& progress) {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!done_.empty() && done_.begin()->first == writer_->next_row()) {
        writer_->add(done_.begin()->second);
        done_.erase(done_.begin());
        ++result_.made;
      }
      changed_.notify_all();
      const double written = static_cast<double>(writer_->next_row());
      const bool is_last = finished_ == options_.concurrency;
      lock.unlock();
      if (progress) progress({"label", written, static_cast<double>(rows_.size()), "rows", ""});
      lock.lock();
      const bool ready = !done_.empty() && done_.begin()->first == writer_->next_row();
      if (is_last && !ready) break;
      if (!ready && finished_ < options_.concurrency) changed_.wait(lock);
    }
  }

  [[noreturn]] void explain() const {
    try {
      std::rethrow_exception(failure_);
    } catch (const Error& e) {
      throw Error(e.kind(), std::string(e.what()) + " (labels of " + std::to_string(writer_->index().labelled_rows()) +
                                " of " + std::to_string(rows_.size()) + " rows are kept in " + options_.out +
                                ": run again with --resume)");
    }
  }

  const LabelOptions& options_;
  const std::function<void(double)>& sleep_;
  const data::ShardReader reader_;
  std::optional<LabelWriter> writer_;
  std::vector<TokenRow> rows_;
  LabelResult result_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  std::map<int64_t, RowLabels> done_;  // received labels that are not written yet, by row index
  int64_t next_ = 0, answered_ = 0;
  int finished_ = 0;
};

}  // namespace

bool has_labels(const LabelOptions& options) {
  const std::optional<LabelIndex> index = complete_labels(options.out);
  if (!index) return false;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, options.out + ": has labels of " + what +
                                       ": remove the directory to ask the endpoint again, or give another --out");
  };
  if (options.top_k > 0 && index->top_k != std::min(options.top_k, index->vocab_size))
    refuse("the " + std::to_string(index->top_k) + " likeliest tokens, and --top-k is " +
           std::to_string(options.top_k));
  if (!options.model.empty() && options.model != index->model)
    refuse("the model '" + index->model + "', and --model is '" + options.model + "'");
  return true;
}

LabelResult label_by_endpoint(const LabelOptions& options, const ProgressFn& progress,
                              const std::function<void(double)>& sleep) {
  validate(options);
  return EndpointLabels(options, sleep).run(progress);
}

}  // namespace specdec::distill
