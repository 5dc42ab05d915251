#include "engine/parallel/shard_ranks.h"

#include <ATen/ATen.h>

namespace specdec::parallel {

namespace {

class RankGroup final : public model::ShardGroup {
 public:
  explicit RankGroup(const Ranks& ranks) : ranks_(ranks) {}

  int rank() const override { return ranks_.rank(); }
  int count() const override { return ranks_.count(); }

  at::Tensor sum(const at::Tensor& own) const override {
    const at::Tensor out = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
    or_lost([&] { ranks_.sum(out); });
    return out;
  }

  at::Tensor join(const at::Tensor& own, int64_t total) const override {
    // The ranks' shares differ by at most one column, but gathered tensors must have the same shape, so smaller ones
    // are padded.
    const int64_t widest = model::share_of(total, count() - 1, count()).length;
    at::Tensor padded = own;
    if (own.size(1) < widest) padded = at::constant_pad_nd(own, {0, widest - own.size(1)});
    std::vector<at::Tensor> parts;
    or_lost([&] { parts = ranks_.gather(padded); });
    for (int r = 0; r < count(); ++r) {
      at::Tensor& part = parts[static_cast<size_t>(r)];
      part = part.narrow(1, 0, model::share_of(total, r, count()).length);
    }
    return at::cat(parts, 1);
  }

  void broadcast(const at::Tensor& tensor) const override {
    or_lost([&] { ranks_.broadcast({tensor}); });
  }

 private:
  template <class F>
  static void or_lost(const F& f) {
    try {
      f();
    } catch (const RankError& e) {
      throw RankLost(e);
    }
  }

  const Ranks& ranks_;
};

}  // namespace

std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks) {
  return std::make_shared<const RankGroup>(ranks);
}

}  // namespace specdec::parallel
