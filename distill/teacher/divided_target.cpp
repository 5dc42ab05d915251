#include "distill/teacher/divided_target.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "distill/teacher/branches.h"
#include "distill/teacher/teacher.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/mirrored_model.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/parallel/shard_ranks.h"

namespace specdec::distill {

namespace {

enum Kind : int64_t { kNothing, kBatch, kText };

at::Tensor on_host(const at::Tensor& tensor) { return tensor.cpu().contiguous(); }

}  // namespace

// A rank's request (Wish) in the form that is sent to the other ranks: its kind and the sizes of the tensors that
// follow.
struct DividedTarget::Announced {
  int64_t kind = kNothing, rows = 0, width = 0, branch_tokens = 0, passes = 1;

  Announced() = default;
  Announced(const Wish& wish, int64_t times) : kind(wish.batch ? kBatch : wish.text ? kText : kNothing), passes(times) {
    if (!wish.batch) return;
    rows = wish.batch->tokens.size(0), width = wish.batch->tokens.size(1);
    if (wish.batch->branches) branch_tokens = wish.batch->branches->tokens.size(1);
  }
  explicit Announced(const at::Tensor& sent) {
    const int64_t* value = sent.const_data_ptr<int64_t>();
    for (int64_t* field : {&kind, &rows, &width, &branch_tokens, &passes}) *field = *value++;
  }
  at::Tensor to_tensor() const { return at::tensor({kind, rows, width, branch_tokens, passes}, at::kLong); }
};

DividedTarget::DividedTarget(std::shared_ptr<const model::Decoder> share, const parallel::Ranks& team)
    : share_(std::move(share)), team_(team) {}

int64_t DividedTarget::share_bytes() const {
  model::DecoderWeights weights = share_->weights;
  int64_t bytes = 0;
  weights.visit(share_->config,
                [&](const std::string&, const at::Tensor& t) { bytes += static_cast<int64_t>(t.nbytes()); });
  return bytes;
}

at::Tensor DividedTarget::hidden_rows(const Batch& batch, const model::HiddenObserver& observer) {
  return meet({.batch = &batch, .observer = &observer}).hidden;
}

void DividedTarget::decode(const std::function<void(decode::CausalModel&)>& f) { meet({.text = &f}); }

void DividedTarget::finish() {
  while (!meet({}).all_finished) {
  }
}

DividedTarget::Round DividedTarget::meet(const Wish& own) {
  const at::NoGradGuard guard;
  const std::vector<at::Tensor> sent = team_.gather(Announced(own, passes_).to_tensor());
  Round out{.all_finished = true, .hidden = {}};
  for (int r = 0; r < count(); ++r) {
    const Announced announced(sent[static_cast<size_t>(r)]);
    const bool is_own = r == team_.rank();
    out.all_finished &= announced.kind == kNothing;
    if (announced.kind == kText) is_own ? write_text(*own.text) : follow_text(r);
    if (announced.kind != kBatch) continue;
    const at::Tensor hidden = run_batch(announced, r, is_own ? own : Wish{});
    if (is_own) out.hidden = hidden;
  }
  return out;
}

at::Tensor DividedTarget::run_batch(const Announced& announced, int asking, const Wish& own) const {
  const auto [kind, rows, width, branch_tokens, passes] = announced;
  Batch batch;
  Branches branches;
  if (own.batch) {
    batch = *own.batch;
    batch.tokens = on_host(batch.tokens);
    if (batch.branches) branches = *batch.branches;
    for (at::Tensor* t : {&branches.tokens, &branches.positions, &branches.allowed})
      if (t->defined()) *t = on_host(*t);
  } else {
    batch.tokens = at::empty({rows, width}, at::kLong);
    batch.rows = at::empty({0}, at::kLong);
    branches.tokens = at::empty({rows, branch_tokens}, at::kLong);
    branches.positions = at::empty({rows, branch_tokens}, at::kLong);
    branches.allowed = at::empty({rows, branch_tokens, width + branch_tokens}, at::kBool);
  }
  std::vector<at::Tensor> sent = {batch.tokens};
  if (branch_tokens > 0) sent.insert(sent.end(), {branches.tokens, branches.positions, branches.allowed});
  team_.broadcast(sent, asking);
  batch.branches = branch_tokens > 0 ? &branches : nullptr;
  at::Tensor hidden;
  try {
    for (int64_t i = 0; i < passes; ++i)
      hidden = distill::hidden_rows(*share_, batch, own.observer ? *own.observer : model::HiddenObserver());
  } catch (const parallel::RankLost& lost) {
    throw parallel::RankError(Error(lost.kind(), lost.what()));  // this rank's training state is still valid
  }
  return hidden;
}

// Runs f with the whole target. Each model call of f is broadcast to the other ranks that hold the target; an empty
// call tells them that f has ended.
void DividedTarget::write_text(const std::function<void(decode::CausalModel&)>& f) const {
  decode::OtherRanks others([this](std::span<const int64_t> call) {
    try {
      send(call);
    } catch (const parallel::RankError& e) {
      throw parallel::RankLost(e);
    }
  });
  const auto model = decode::with_rounds(decode::make_mirrored_model(decode::make_model_runner(share_), others));
  f(*model);
  others.tell({});
}

void DividedTarget::follow_text(int writing) const {
  const auto model = decode::make_model_runner(share_);
  decode::LogitRows unread;
  for (auto call = receive(writing); !call.empty(); call = receive(writing)) decode::repeat_call(*model, call, unread);
}

void DividedTarget::send(std::span<const int64_t> call) const {
  const auto count = static_cast<int64_t>(call.size());
  team_.broadcast({at::full({1}, count, at::kLong)}, team_.rank());
  if (count == 0) return;
  team_.broadcast({at::tensor(at::ArrayRef<int64_t>(call.data(), call.size()), at::kLong)}, team_.rank());
}

std::vector<int64_t> DividedTarget::receive(int writing) const {
  const at::Tensor count = at::empty({1}, at::kLong);
  team_.broadcast({count}, writing);
  const at::Tensor call = at::empty({count.item<int64_t>()}, at::kLong);
  team_.broadcast({call}, writing);
  return {call.const_data_ptr<int64_t>(), call.const_data_ptr<int64_t>() + call.numel()};
}

}  // namespace specdec::distill
