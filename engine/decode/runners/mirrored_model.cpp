#include "engine/decode/runners/mirrored_model.h"

#include <c10/core/InferenceMode.h>

#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/decode/runners/round_models.h"
#include "engine/decode/runners/runner_parts.h"
#include "engine/decode/runners/tap_source.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/forward_cuda.h"

namespace specdec::decode {

namespace {

// The first number of a call is its kind, and the others are its arguments. The last three kinds are calls of
// RoundTarget.
enum CallKind : int64_t { kOpen, kFork, kClose, kTruncate, kKeep, kExtend, kAdopt, kReserve, kRunPass, kCommitPass };

template <class T>
void add(std::vector<int64_t>& call, std::span<const T> values) {
  call.push_back(static_cast<int64_t>(values.size()));
  call.insert(call.end(), values.begin(), values.end());
}

std::vector<int64_t> call_with(CallKind kind, std::span<const Extension> extensions) {
  std::vector<int64_t> call = {kind, static_cast<int64_t>(extensions.size())};
  for (const Extension& e : extensions) {
    call.insert(call.end(), {e.sequence, e.num_logits});
    add(call, e.tokens);
    add(call, e.parents);
  }
  return call;
}

// Reads the numbers of a call one after the other.
class CallReader {
 public:
  explicit CallReader(std::span<const int64_t> call) : call_(call) {}

  int64_t next() { return span(1)[0]; }
  std::span<const int64_t> span(int64_t count) {
    if (count < 0 || static_cast<size_t>(count) > call_.size()) refuse();
    const auto taken = call_.first(static_cast<size_t>(count));
    call_ = call_.subspan(static_cast<size_t>(count));
    return taken;
  }
  std::vector<int32_t> tokens() {
    const auto wide = span(next());
    return {wide.begin(), wide.end()};
  }
  void end() const {
    if (!call_.empty()) refuse();
  }
  [[noreturn]] static void refuse() { throw Error(ErrorKind::kInternal, "a call of rank 0 is not understood"); }

 private:
  std::span<const int64_t> call_;
};

// Sends the token ids of rank 0's pass to all ranks. Drafts on rank 0's device have chosen some of them, so the other
// ranks do not know them.
void share_ids(const model::Decoder& decoder, const model::CudaPass& pass, const model::DeviceUpload& upload) {
  decoder.group->broadcast(upload.tensor(pass.id_place(0), pass.num_rows(), at::kInt));
}

class MirroredModel : public ForwardingModel, public TapSource {
 public:
  MirroredModel(std::unique_ptr<CausalModel> own, OtherRanks& others)
      : ForwardingModel(*own), others_(others), own_(std::move(own)), taps_(dynamic_cast<TapSource&>(*own_)) {}

  SequenceId open() override {
    return on_all([&] {
      const SequenceId opened = own_->open();
      others_.tell(std::vector<int64_t>{kOpen, opened});
      return opened;
    });
  }
  SequenceId fork(SequenceId sequence, int64_t length) override {
    return on_all([&] {
      const SequenceId opened = own_->fork(sequence, length);
      others_.tell(std::vector<int64_t>{kFork, sequence, length, opened});
      return opened;
    });
  }
  // Does not throw if a rank is gone, because destructors call it. The next call of another function throws.
  void close(SequenceId sequence) override {
    own_->close(sequence);
    if (others_.lost()) return;
    try {
      others_.tell(std::vector<int64_t>{kClose, sequence});
    } catch (const DeviceLost&) {
    }
  }
  void truncate(SequenceId sequence, int64_t length) override {
    if (length == own_->length(sequence)) return;
    on_all([&] {
      own_->truncate(sequence, length);
      others_.tell(std::vector<int64_t>{kTruncate, sequence, length});
    });
  }
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) override {
    on_all([&] {
      own_->keep(sequence, length, places);
      std::vector<int64_t> call = {kKeep, sequence, length};
      add(call, places);
      others_.tell(call);
    });
  }
  int64_t adopt(SequenceId sequence, std::span<const int32_t> tokens, uint64_t tenant) override {
    return on_all([&] {
      const int64_t found = own_->adopt(sequence, tokens, tenant);
      std::vector<int64_t> call = {kAdopt, sequence, static_cast<int64_t>(tenant), found};
      add(call, tokens);
      others_.tell(call);
      return found;
    });
  }
  // The call is sent before the pass, because the ranks exchange sums during the pass.
  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    const std::vector<int64_t> call = call_with(kExtend, extensions);
    on_all([&] {
      others_.tell(call);
      own_->extend(extensions, out);
    });
  }
  // Returns this model, not this rank's share. A pass of the share waits for the other ranks, and only this class
  // notifies them.
  CausalModel& innermost() override { return *this; }
  RoundRunner* rounds() override { return nullptr; }

  std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers) override {
    return taps_.add_reader(std::move(layers));
  }
  void keep_states(TapReader& reader, SequenceId sequence) override { taps_.keep_states(reader, sequence); }

 protected:
  // Runs a call that changes the sequences on this rank and the others. CacheFull is thrown on all ranks, and before
  // anything is changed.
  template <class F>
  std::invoke_result_t<F> on_all(const F& f) {
    if (others_.lost()) throw DeviceLost(*others_.lost());
    try {
      return f();
    } catch (const CacheFull&) {
      throw;
    } catch (const DeviceLost& lost) {
      others_.lose(lost);
      throw;
    } catch (const std::exception& e) {
      const auto* const known = dynamic_cast<const Error*>(&e);
      const DeviceLost lost("a call failed on rank 0, so that the ranks no longer agree: " + std::string(e.what()),
                            known ? known->kind() : ErrorKind::kDevice);
      others_.lose(lost);
      throw lost;
    }
  }

  OtherRanks& others_;

 private:
  std::unique_ptr<CausalModel> own_;
  TapSource& taps_;
};

// A target that all ranks hold together and whose shares can run rounds. All ranks run the target's pass of a round;
// only rank 0 drafts, draws and verifies.
class MirroredTarget final : public MirroredModel, public RoundTarget {
 public:
  MirroredTarget(std::unique_ptr<CausalModel> own, RoundTarget& share, OtherRanks& others)
      : MirroredModel(std::move(own), others), share_(share) {}

  RoundRunner* rounds() override { return rounds_.get(); }
  void set_rounds(std::shared_ptr<RoundRunner> rounds) override { rounds_ = std::move(rounds); }
  const model::Decoder& decoder() const override { return share_.decoder(); }
  model::KvCache& cache(SequenceId sequence) override { return share_.cache(sequence); }
  const model::BlockPool& pool() const override { return share_.pool(); }
  model::PassGraphs* graphs() override { return share_.graphs(); }

  // reserve() is sent to the other ranks separately from run_pass(), because a draft may fail after reserve() and
  // before the pass. The round then ends, but all ranks have allocated the same blocks and can reuse them.
  void reserve(std::span<const Extension> extensions) override {
    on_all([&] {
      share_.reserve(extensions);
      others_.tell(call_with(kReserve, extensions));
    });
  }
  at::Tensor run_pass(const model::CudaPass& pass, const model::DeviceUpload& upload,
                      std::span<const Extension> extensions) override {
    const std::vector<int64_t> call = call_with(kRunPass, extensions);
    return on_all([&] {
      others_.tell(call);
      return model::with_device_errors([&] {
        share_ids(decoder(), pass, upload);
        return share_.run_pass(pass, upload, extensions);
      });
    });
  }
  void commit_pass(std::span<const Extension> extensions) override {
    on_all([&] {
      share_.commit_pass(extensions);
      others_.tell(call_with(kCommitPass, extensions));
    });
  }

 private:
  RoundTarget& share_;
  std::shared_ptr<RoundRunner> rounds_;
};

// The extensions of a received call. Owns the memory of their tokens and parents.
struct ToldExtensions {
  explicit ToldExtensions(CallReader& call) {
    const int64_t count = call.next();
    for (int64_t i = 0; i < count; ++i) {
      const SequenceId sequence = call.next();
      const int64_t num_logits = call.next();
      tokens.push_back(call.tokens());
      parents.push_back(call.tokens());
      extensions.push_back({sequence, tokens.back(), num_logits, parents.back()});
    }
    call.end();
  }
  std::deque<std::vector<int32_t>> tokens, parents;
  std::vector<Extension> extensions;
};

void repeat_extend(CausalModel& model, CallReader& call, LogitRows& unread) {
  const ToldExtensions told(call);
  try {
    model.extend(told.extensions, unread);
  } catch (const CacheFull&) {
  }
}

// Runs this rank's share of the target pass that verifies a round's drafted tokens. Only rank 0 uses the logits.
void repeat_pass(RoundTarget& target, std::span<const Extension> extensions) {
  const c10::InferenceMode guard;
  const model::Decoder& decoder = target.decoder();
  model::CudaPass pass(decoder);
  for (const Extension& e : extensions) {
    model::SequencePart part{.cache = &target.cache(e.sequence), .tokens = e.tokens, .num_logits = e.num_logits};
    if (!e.parents.empty()) set_tree(e.parents, part);
    model::add_part(part, part.num_logits, pass);
  }
  model::DeviceUpload upload(decoder.weights.embed.device());
  pass.describe(upload);
  upload.send();
  share_ids(decoder, pass, upload);
  target.run_pass(pass, upload, extensions);
}

void repeat_round_call(CausalModel& model, int64_t kind, CallReader& call) {
  const ToldExtensions told(call);
  auto* const target = dynamic_cast<RoundTarget*>(&model);
  if (!target || !model::cuda_pass_library(target->decoder())) CallReader::refuse();
  model::with_device_errors([&] {
    if (kind == kReserve) return target->reserve(told.extensions);
    if (kind == kCommitPass) return target->commit_pass(told.extensions);
    repeat_pass(*target, told.extensions);
  });
}

// Throws if `found` on this rank differs from rank 0's value: the id of a sequence, or how many tokens were cached.
void require_same(int64_t found, int64_t expected) {
  if (found != expected)
    throw Error(ErrorKind::kInternal, "the ranks' sequences differ: " + std::to_string(found) + " here, and " +
                                          std::to_string(expected) + " on rank 0");
}

}  // namespace

void OtherRanks::tell(std::span<const int64_t> call) {
  if (lost_) throw DeviceLost(*lost_);
  try {
    send_(call);
  } catch (const DeviceLost& lost) {
    lose(lost);
    throw;
  }
}

void OtherRanks::lose(const DeviceLost& why) {
  if (!lost_) lost_ = why;
}

std::unique_ptr<CausalModel> make_mirrored_model(std::unique_ptr<CausalModel> own, OtherRanks& others) {
  if (auto* const share = dynamic_cast<RoundTarget*>(own.get()))
    return std::make_unique<MirroredTarget>(std::move(own), *share, others);
  return std::make_unique<MirroredModel>(std::move(own), others);
}

void repeat_call(CausalModel& model, std::span<const int64_t> numbers, LogitRows& unread) {
  CallReader call(numbers);
  const int64_t kind = call.next();
  if (kind == kExtend) return repeat_extend(model, call, unread);
  if (kind == kReserve || kind == kRunPass || kind == kCommitPass) return repeat_round_call(model, kind, call);
  if (kind == kOpen) return require_same(model.open(), call.next());
  const SequenceId sequence = call.next();
  switch (kind) {
    case kFork: {
      const int64_t length = call.next();
      return require_same(model.fork(sequence, length), call.next());
    }
    case kClose:
      return model.close(sequence);
    case kTruncate:
      return model.truncate(sequence, call.next());
    case kKeep: {
      const int64_t length = call.next();
      return model.keep(sequence, length, call.span(call.next()));
    }
    case kAdopt: {
      const auto tenant = static_cast<uint64_t>(call.next());
      const int64_t found = call.next();
      return require_same(model.adopt(sequence, call.tokens(), tenant), found);
    }
    default:
      CallReader::refuse();
  }
}

}  // namespace specdec::decode
