#include "engine/model/forward_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>

#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/team.h"
#include "engine/model/rope.h"

namespace specdec::model {

namespace {

namespace cpu = kernels::cpu;
using kernels::Member;

// Up to this many rows every thread normalises all of them for itself: cheaper than a barrier.
constexpr int64_t kPrivateRows = 16;

// Cosines and sines by position, kept between passes: a thread runs few models (target, draft).
class AngleTable {
 public:
  explicit AngleTable(const DecoderConfig& config) : rope_(config.rope), half_(config.head_dim / 2) {
    const at::Tensor frequencies = inverse_frequencies(config).contiguous();
    const float* data = frequencies.const_data_ptr<float>();
    frequencies_.assign(data, data + half_);
  }
  bool fits(const DecoderConfig& config) const { return rope_ == config.rope && half_ == config.head_dim / 2; }

  void copy(int64_t position, float* cos, float* sin) {
    constexpr int64_t kKept = 1 << 16;
    if (position < 0 || position >= kKept) return compute(position, cos, sin);
    for (int64_t next = static_cast<int64_t>(table_.size()) / (2 * half_); next <= position; ++next) {
      table_.resize(table_.size() + static_cast<size_t>(2 * half_));
      compute(next, table_.data() + 2 * half_ * next, table_.data() + 2 * half_ * next + half_);
    }
    const float* row = table_.data() + 2 * half_ * position;
    std::copy(row, row + half_, cos);
    std::copy(row + half_, row + 2 * half_, sin);
  }

 private:
  void compute(int64_t position, float* cos, float* sin) const {
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(position) * frequencies_[static_cast<size_t>(i)];
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
  }
  RopeConfig rope_;
  int64_t half_;
  std::vector<float> frequencies_, table_;
};

AngleTable& angle_table(const DecoderConfig& config) {
  constexpr size_t kTables = 8;
  thread_local std::vector<std::unique_ptr<AngleTable>> tables;
  for (auto& table : tables) {
    if (table->fits(config)) return *table;
  }
  if (tables.size() == kTables) tables.erase(tables.begin());
  return *tables.emplace_back(std::make_unique<AngleTable>(config));
}

// One block of memory cut into buffers; grows, never shrinks, so a warm pass allocates nothing.
class Arena {
 public:
  template <class... Cut>  // pairs (float*&, count)
  void cut(Cut&&... cuts) {
    size_t total = 0;
    const auto add = [&](float*&, int64_t count) { total += rounded(count); };
    each(add, cuts...);
    if (total > size_) {
      block_.reset(static_cast<float*>(::operator new(total * sizeof(float), kLine)));
      size_ = total;
    }
    float* next = block_.get();
    const auto take = [&](float*& pointer, int64_t count) {
      pointer = next;
      next += rounded(count);
    };
    each(take, cuts...);
  }

 private:
  static constexpr std::align_val_t kLine{64};
  static size_t rounded(int64_t count) { return (static_cast<size_t>(count) + 15) / 16 * 16; }
  template <class F>
  static void each(const F&) {}
  template <class F, class... Rest>
  static void each(const F& f, float*& pointer, int64_t count, Rest&&... rest) {
    f(pointer, count);
    each(f, rest...);
  }
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kLine); }
  };
  std::unique_ptr<float, Free> block_;
  size_t size_ = 0;
};

// One token of the flat batch, and where its key and value go.
struct Row {
  KvCache* cache;
  int32_t token;
  int64_t slot;
};

// Rows of one part that attend together.
constexpr int64_t kAttendRows = 4;
struct Group {
  int64_t first, rows;
};

template <class T>
class Pass {
 public:
  Pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer)
      : decoder_(decoder), config_(decoder.config), kernels_(cpu::kernels<T>()), observer_(observer) {
    for (const SequencePart& part : parts) add(part);
    for (const Listed& l : listed_) visible_.push_back({l.prefix, extra_.data() + l.extra, l.count});
    count_ = static_cast<int64_t>(rows_.size());
    heads_width_ = config_.num_heads * config_.head_dim;
    kv_width_ = config_.num_kv_heads * config_.head_dim;
    threads_ = choose_threads();
    const int64_t e = config_.hidden_size, i = config_.intermediate_size, half = config_.head_dim / 2;
    const int64_t copies = count_ <= kPrivateRows ? threads_ : 1;
    score_count_ = kAttendRows * config_.num_heads / config_.num_kv_heads * longest_;
    thread_local Arena arena;
    arena.cut(x_, count_ * e, normed_, std::max<int64_t>(copies * count_, threads_) * e, q_, count_ * heads_width_, attended_, count_ * heads_width_, k_, count_ * kv_width_,
              v_, count_ * kv_width_, gate_, count_ * i, up_, count_ * i, cos_, count_ * half, sin_, count_ * half, scores_, threads_ * score_count_);
    AngleTable& angles = angle_table(config_);
    for (int64_t r = 0; r < count_; ++r) angles.copy(positions_[static_cast<size_t>(r)], cos_ + r * half, sin_ + r * half);
  }

  at::Tensor run() {
    const auto wanted = static_cast<int64_t>(logit_rows_.size());
    at::Tensor logits = at::empty({wanted, config_.vocab_size}, at::kFloat);
    logits_ = logits.data_ptr<float>();
    kernels::run_team(threads_, [this](const Member& member) { work(member); });
    if (failure_) std::rethrow_exception(failure_);
    return logits;
  }

 private:
  static const T* data(const at::Tensor& tensor) { return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr; }

  void add(const SequencePart& part) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    const int64_t before = part.cache->length();
    part.cache->reserve(before + count);
    longest_ = std::max(longest_, before + count);
    const at::Tensor mask = part.tree_mask.defined() ? part.tree_mask.to(at::kCPU).contiguous() : at::Tensor();
    for (int64_t i = 0; i < count; ++i) {
      if (i % kAttendRows == 0) groups_.push_back({static_cast<int64_t>(rows_.size()), std::min(kAttendRows, count - i)});
      Listed row{before + i + 1, extra_.size(), 0};
      if (mask.defined()) {
        const bool* allowed = mask.const_data_ptr<bool>() + i * count;
        int64_t leading = 0;
        while (leading < count && allowed[leading]) ++leading;
        row.prefix = before + leading;
        for (int64_t j = leading; j < count; ++j) {
          if (allowed[j]) extra_.push_back(static_cast<int32_t>(before + j));
        }
        row.count = static_cast<int64_t>(extra_.size() - row.extra);
      }
      if (i >= count - part.num_logits) logit_rows_.push_back(static_cast<int64_t>(rows_.size()));
      positions_.push_back(part.positions.empty() ? before + i : part.positions[static_cast<size_t>(i)]);
      rows_.push_back({part.cache, part.tokens[static_cast<size_t>(i)], before + i});
      listed_.push_back(row);
    }
  }

  // A thread pays if its share of one stage (five a layer) takes longer than meeting the others, about 1.5 µs.
  // Speeds of one core, roughly: 20 GB/s of weights, 40 products a nanosecond.
  int choose_threads() const {
    const auto layer = static_cast<double>(config_.hidden_size * (2 * heads_width_ + 2 * kv_width_ + 3 * config_.intermediate_size));
    const double nanoseconds = layer / 5 * std::max(static_cast<double>(sizeof(T)) / 20, static_cast<double>(count_) / 40);
    return static_cast<int>(std::clamp<double>(nanoseconds / 1500, 1, at::get_num_threads()));
  }

  void product(const float* x, int64_t k, int64_t rows, const at::Tensor& w, const at::Tensor& bias, std::pair<int64_t, int64_t> columns, float* out,
               int64_t width, bool add) const {
    kernels_.linear({x, k, rows, data(w), k, columns.first, columns.second, data(bias), out, width, add});
  }

  // The rows normalised, as this member may read them.
  const float* norm(const Member& member, const at::Tensor& weight) const {
    const int64_t e = config_.hidden_size;
    const bool own = count_ <= kPrivateRows;
    float* out = own ? normed_ + member.id * count_ * e : normed_;
    const auto [begin, end] = own ? std::pair<int64_t, int64_t>{0, count_} : member.part(count_);
    for (int64_t r = begin; r < end; ++r) kernels_.rms_norm(x_ + r * e, data(weight), static_cast<float>(config_.rms_norm_eps), e, out + r * e);
    if (!own) member.barrier();
    return out;
  }

  // Queries, keys and values of whole heads: rotated here, keys and values written to the caches.
  void project(const Member& member, int64_t layer, const float* x) const {
    const LayerWeights& w = decoder_.weights.layers[static_cast<size_t>(layer)];
    const int64_t e = config_.hidden_size, d = config_.head_dim, h = config_.num_heads, g = config_.num_kv_heads;
    const auto [begin, end] = member.part(h + 2 * g);
    const auto columns = [&](int64_t first, int64_t heads) {  // of heads [first, first + heads) that are this member's
      return std::pair{std::clamp<int64_t>(begin - first, 0, heads) * d, std::clamp<int64_t>(end - first, 0, heads) * d};
    };
    const auto rotate = [&](float* rows, int64_t width, std::pair<int64_t, int64_t> part) {
      for (int64_t r = 0; r < count_; ++r) {
        for (int64_t c = part.first; c < part.second; c += d)
          kernels_.rope(rows + r * width + c, cos_ + r * (d / 2), sin_ + r * (d / 2), d, rows + r * width + c);
      }
    };
    const auto write = [&](const float* rows, std::pair<int64_t, int64_t> part, bool keys) {
      for (int64_t r = 0; r < count_; ++r) {
        const Row& row = rows_[static_cast<size_t>(r)];
        T* to = static_cast<T*>((keys ? row.cache->keys(layer) : row.cache->values(layer)).data_ptr());
        for (int64_t c = part.first; c < part.second; c += d)
          kernels_.narrow(rows + r * kv_width_ + c, d, to + (c / d * row.cache->capacity() + row.slot) * d);
      }
    };
    const auto q = columns(0, h), k = columns(h, g), v = columns(h + g, g);
    if (q.first < q.second) product(x, e, count_, w.q, w.q_bias, q, q_, heads_width_, false), rotate(q_, heads_width_, q);
    if (k.first < k.second) product(x, e, count_, w.k, w.k_bias, k, k_, kv_width_, false), rotate(k_, kv_width_, k), write(k_, k, true);
    if (v.first < v.second) product(x, e, count_, w.v, w.v_bias, v, v_, kv_width_, false), write(v_, v, false);
  }

  void attend(const Member& member, int64_t layer) const {
    const int64_t d = config_.head_dim, kv = config_.num_kv_heads, heads = config_.num_heads / kv;
    const float scale = 1.0f / std::sqrt(static_cast<float>(d));
    // Interleaved: later rows of a prompt see more keys.
    for (int64_t unit = member.id; unit < static_cast<int64_t>(groups_.size()) * kv; unit += member.size) {
      const Group& group = groups_[static_cast<size_t>(unit / kv)];
      const KvCache& cache = *rows_[static_cast<size_t>(group.first)].cache;
      const int64_t g = unit % kv, at = group.first * heads_width_ + g * heads * d, slots = g * cache.capacity() * d;
      kernels_.attention({q_ + at, heads_width_, group.rows, heads, d, data(cache.keys(layer)) + slots, data(cache.values(layer)) + slots,
                          visible_.data() + group.first, scale, scores_ + member.id * score_count_, longest_, attended_ + at});
    }
  }

  void feed_forward(const Member& member, const LayerWeights& w, const float* x) const {
    const int64_t e = config_.hidden_size, i = config_.intermediate_size;
    const auto part = member.part(i, 8);
    product(x, e, count_, w.gate, w.gate_bias, part, gate_, i, false);
    product(x, e, count_, w.up, w.up_bias, part, up_, i, false);
    for (int64_t r = 0; r < count_; ++r) {
      float* gate = gate_ + r * i + part.first;
      kernels_.silu_mul(gate, up_ + r * i + part.first, part.second - part.first, gate);
    }
    member.barrier();
    product(gate_, i, count_, w.down, w.down_bias, member.part(e, 8), x_, e, true);
    member.barrier();
  }

  void observe(const Member& member, int64_t layer) {
    if (member.id != 0 || !observer_ || failure_) return;
    try {
      observer_(layer, at::from_blob(x_, {count_, config_.hidden_size}, at::kFloat).to(decoder_.weights.embed.scalar_type(), false, /*copy=*/true));
    } catch (...) {  // must not leave the team
      failure_ = std::current_exception();
    }
  }

  void logits(const Member& member) const {
    const int64_t e = config_.hidden_size, vocab = config_.vocab_size;
    const float eps = static_cast<float>(config_.rms_norm_eps);
    const auto columns = member.part(vocab, 8);
    // In blocks of rows that each member normalises for itself.
    const auto wanted = static_cast<int64_t>(logit_rows_.size());
    const int64_t block = count_ <= kPrivateRows ? count_ : std::max<int64_t>(1, count_ / member.size);
    float* own = normed_ + member.id * block * e;
    for (int64_t first = 0; first < wanted; first += block) {
      const int64_t rows = std::min(block, wanted - first);
      for (int64_t r = 0; r < rows; ++r)
        kernels_.rms_norm(x_ + logit_rows_[static_cast<size_t>(first + r)] * e, data(decoder_.weights.norm), eps, e, own + r * e);
      product(own, e, rows, decoder_.weights.lm_head, {}, columns, logits_ + first * vocab, vocab, false);
    }
  }

  void work(const Member& member) {
    const int64_t e = config_.hidden_size;
    const auto [begin, end] = member.part(count_);
    for (int64_t r = begin; r < end; ++r)
      kernels_.widen(data(decoder_.weights.embed) + rows_[static_cast<size_t>(r)].token * e, e, x_ + r * e);
    member.barrier();
    observe(member, 0);
    for (int64_t l = 0; l < config_.num_layers; ++l) {
      const LayerWeights& w = decoder_.weights.layers[static_cast<size_t>(l)];
      project(member, l, norm(member, w.input_norm));
      member.barrier();
      attend(member, l);
      member.barrier();
      product(attended_, heads_width_, count_, w.o, w.o_bias, member.part(e, 8), x_, e, true);
      member.barrier();
      feed_forward(member, w, norm(member, w.post_norm));
      observe(member, l + 1);
    }
    logits(member);
  }

  const Decoder& decoder_;
  const DecoderConfig& config_;
  const cpu::Kernels<T>& kernels_;
  const HiddenObserver& observer_;
  struct Listed {  // what a row sees, while extra_ still grows
    int64_t prefix;
    size_t extra;
    int64_t count;
  };
  std::vector<Row> rows_;
  std::vector<Group> groups_;
  std::vector<Listed> listed_;
  std::vector<cpu::Visible> visible_;
  std::vector<int64_t> positions_, logit_rows_;
  std::vector<int32_t> extra_;
  int64_t count_ = 0, heads_width_ = 0, kv_width_ = 0, longest_ = 0, score_count_ = 0;
  int threads_ = 1;
  float *x_, *normed_, *q_, *attended_, *k_, *v_, *gate_, *up_, *cos_, *sin_, *scores_, *logits_;
  std::exception_ptr failure_;
};

template <class T>
at::Tensor run_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer) {
  at::Tensor logits = Pass<T>(decoder, parts, observer).run();
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace

bool cpu_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts) {
  const at::Tensor& embed = decoder.weights.embed;
  const auto dtype = embed.scalar_type();
  if (kernels::reference_forced() || !embed.is_cpu() || (dtype != at::kFloat && dtype != at::kBFloat16)) return false;
  for (const LayerWeights& w : decoder.weights.layers) {
    for (const at::Tensor* tensor : {&w.input_norm, &w.q, &w.k, &w.v, &w.o, &w.post_norm, &w.gate, &w.up, &w.down}) {
      if (!tensor->is_contiguous() || tensor->scalar_type() != dtype) return false;
    }
  }
  return std::all_of(parts.begin(), parts.end(), [&](const SequencePart& part) { return part.cache->keys(0).scalar_type() == dtype; });
}

at::Tensor cpu_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer) {
  const bool narrow = decoder.weights.embed.scalar_type() == at::kBFloat16;
  return narrow ? run_pass<cpu::Bf16>(decoder, parts, observer) : run_pass<float>(decoder, parts, observer);
}

}  // namespace specdec::model
