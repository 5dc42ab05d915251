#include "engine/decode/rollout.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/decode/answer.h"
#include "engine/decode/step.h"

namespace specdec::decode {

namespace {

// An answer that is being generated.
struct Running {
  size_t row;
  Sequence sequence;
  AnswerCut cut;
  Running(size_t row, Stepper& stepper, Request request, const Drafting& drafting)
      : row(row), sequence(stepper, std::move(request), drafting), cut(sequence.options()) {}
};

class Roller {
 public:
  Roller(CausalModel& target, CausalModel* draft, const RolloutOptions& options)
      : target_(target), stepper_(target, draft), options_(options) {
    drafting_.verify = options.verify;
    if (options.k == 0) return;
    ControllerOptions& controller = drafting_.model.emplace();
    controller.fixed_k = options.k;
    controller.max_k = options.k < 0 ? options.max_k : options.k;
  }

  size_t active() const { return running_.size(); }
  // Returns the progress of the running answers: the sum of their completed fractions.
  double begun(const std::vector<Rollout>& out) const {
    double tokens = 0;
    for (const auto& r : running_) tokens += static_cast<double>(out[r->row].tokens.size());
    return tokens / static_cast<double>(options_.request.max_tokens + 1);
  }

  // Starts the answer of a row. Returns false if the prompt leaves no room for an answer, or is empty.
  bool start(size_t index, const TokenRow& row) {
    const int64_t prompt = std::max<int64_t>(row.prompt_tokens, 1);
    if (row.tokens.empty() || prompt >= target_.max_length()) return false;
    const auto end = row.tokens.begin() + std::min<int64_t>(prompt, static_cast<int64_t>(row.tokens.size()));
    Request request{{row.tokens.begin(), end}, row_seed(options_.seed, row.id), options_.request};
    auto r = std::make_unique<Running>(index, stepper_, std::move(request), drafting_);
    stepper_.start(r->sequence);
    running_.push_back(std::move(r));
    return true;
  }

  // Runs one step, removes the answers that ended, and returns their number.
  size_t step(std::vector<Rollout>& out) {
    batch_.clear();
    for (auto& r : running_) batch_.push_back(&r->sequence);
    stepper_.step(batch_);
    const size_t before = running_.size();
    std::erase_if(running_, [&](const std::unique_ptr<Running>& r) { return add(*r, out[r->row]); });
    return before - running_.size();
  }

 private:
  // Appends the emitted tokens and returns whether the answer has ended.
  static bool add(Running& r, Rollout& out) {
    const AnswerEnd end = r.cut.add(r.sequence.outcome().emitted, [&](int32_t token, bool) {
      out.tokens.push_back(token);
      return true;
    });
    if (end == AnswerEnd::kNone && r.sequence.remaining() > 0) return false;
    out.counts = r.sequence.counts();
    out.counts.emitted = r.cut.tokens();
    return true;
  }

  CausalModel& target_;
  Stepper stepper_;
  const RolloutOptions& options_;
  Drafting drafting_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<Sequence*> batch_;
};

}  // namespace

uint64_t row_seed(uint64_t seed, const std::string& id) {
  return std::stoull(sha256_hex(std::to_string(seed) + ":" + id).substr(0, 16), nullptr, 16);
}

std::vector<Rollout> roll_out(CausalModel& target, CausalModel* draft, std::span<const TokenRow> rows,
                              const RolloutOptions& options, const ProgressFn& progress) {
  std::vector<Rollout> out(rows.size());
  Roller roller(target, draft, options);
  size_t next = 0, done = 0;
  const auto report = [&](double share) {
    if (progress) progress({options.stage, share, static_cast<double>(rows.size()), "requests", ""});
  };
  report(0);  // the first report comes before the first step, which is slow because it prefills whole prompts
  while (next < rows.size() || roller.active() > 0) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal during roll-outs");
    if (options.is_late && options.is_late()) break;
    while (next < rows.size() && roller.active() < static_cast<size_t>(std::max(options.batch, 1))) {
      done += with_context("row " + rows[next].id, [&] { return roller.start(next, rows[next]); }) ? 0 : 1;
      ++next;
      if (options.is_late) break;
    }
    if (roller.active() > 0) done += roller.step(out);
    report(static_cast<double>(done) + roller.begun(out));
  }
  return out;
}

TokenRow answered_row(const TokenRow& row, const Rollout& rollout) {
  TokenRow answered = row;
  answered.prompt_tokens =
      std::min<int64_t>(std::max<int64_t>(row.prompt_tokens, 1), static_cast<int64_t>(row.tokens.size()));
  answered.tokens.resize(static_cast<size_t>(answered.prompt_tokens));
  answered.loss_mask.assign(answered.tokens.size(), 0);
  answered.tokens.insert(answered.tokens.end(), rollout.tokens.begin(), rollout.tokens.end());
  answered.loss_mask.resize(answered.tokens.size(), 1);
  return answered;
}

}  // namespace specdec::decode
