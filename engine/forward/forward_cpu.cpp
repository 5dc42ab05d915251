#include "engine/forward/forward_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>

#include "engine/config/rope.h"
#include "engine/forward/angle_table.h"
#include "engine/forward/arena.h"
#include "engine/forward/pass_rows.h"
#include "engine/forward/row_product.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/team.h"

namespace specdec::model {

namespace {

using kernels::Member;

// Maximum number of rows for which every thread normalises all rows itself, because this is cheaper than a barrier.
constexpr int64_t kPrivateRows = 16;

template <class T>
class Pass {
 public:
  Pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
       const std::vector<int64_t>& observed)
      : decoder_(decoder),
        config_(decoder.config),
        kernels_(cpu::kernels<T>()),
        observer_(observer),
        observed_(observed) {
    for (const LayerConfig& layer : config_.layers) {
      mixed_ |= layer.experts;
      branched_ |= layer.experts || layer.attention_out_norm || layer.mlp_out_norm;
      uses_[0] |= layer.rope == LayerRope::kGlobal;
      uses_[1] |= layer.rope == LayerRope::kLocal;
    }
    pass_.fill(parts, config_, sizeof(T));
    count_ = static_cast<int64_t>(rows_.size());
    heads_width_ = config_.num_heads * config_.head_dim;
    kv_width_ = config_.num_kv_heads * config_.head_dim;
    inner_ =
        std::max(config_.intermediate_size, mixed_ ? config_.experts_per_token * config_.expert_intermediate_size : 0);
    threads_ = choose_threads();
    const int64_t e = config_.hidden_size, copies = count_ <= kPrivateRows ? threads_ : 1, half = config_.head_dim / 2;
    const auto angles = [&](int rope) { return uses_[static_cast<size_t>(rope)] ? count_ * half : 0; };
    fixed_count_ = RowProduct<T>::workspace(decoder_, count_, std::max({e, heads_width_, inner_}));
    score_count_ = PassRows::kAttendRows * config_.num_heads / config_.num_kv_heads * pass_.longest;
    thread_local Arena arena;
    arena.cut(x_, count_ * e, normed_, std::max<int64_t>(copies * count_, threads_) * e, q_, count_ * heads_width_,
              attended_, count_ * heads_width_, k_, count_ * kv_width_, v_, count_ * kv_width_, gate_, count_ * inner_,
              up_, count_ * inner_, branch_, branched_ ? count_ * e : 0, router_,
              mixed_ ? count_ * config_.num_experts : 0, scores_, threads_ * score_count_, fixed_,
              threads_ * fixed_count_, cos_[0], angles(0), sin_[0], angles(0), cos_[1], angles(1), sin_[1], angles(1));
    for (const int rope : {0, 1}) {
      if (uses_[static_cast<size_t>(rope)]) fill_angles(rope);
    }
  }

  at::Tensor run() {
    const auto wanted = static_cast<int64_t>(pass_.logit_rows.size());
    at::Tensor logits = at::empty({wanted, decoder_.weights.lm_head.size(0)}, at::kFloat);
    logits_ = logits.data_ptr<float>();
    kernels::run_team(threads_, [this](const Member& member) { work(member); });
    if (failure_) std::rethrow_exception(failure_);
    return logits;
  }

 private:
  static const T* data(const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
  }

  const RopeConfig& rope(int which) const { return which == 0 ? config_.rope : config_.local_rope; }

  void fill_angles(int which) {
    const auto at = static_cast<size_t>(which);
    const int64_t half = half_[at] = rotary_dim(rope(which), config_.head_dim) / 2;
    for (int64_t r = 0; r < count_; ++r) {
      const int64_t rope_rescale = rope_varies(rope(which)) ? rows_[static_cast<size_t>(r)].cache->rope_rescale() : 0;
      angle_table(rope(which), config_.head_dim, rope_rescale)
          .copy(pass_.positions[static_cast<size_t>(r)], cos_[at] + r * half, sin_[at] + r * half);
    }
  }

  // Returns the number of threads. A layer has five stages that end at a barrier of about 1.5 µs. Another thread is
  // worthwhile if each thread's share of a stage takes longer than that. Assumed speeds per core: 20 GB/s of weights,
  // 40 multiply-adds per nanosecond.
  int choose_threads() const {
    const auto layer = static_cast<double>(config_.hidden_size * (2 * heads_width_ + 2 * kv_width_ + 3 * inner_));
    const double nanoseconds =
        layer / 5 *
        std::max(static_cast<double>(c10::elementSize(dtype_of(decoder_))) / 20, static_cast<double>(count_) / 40);
    return static_cast<int>(std::clamp<double>(nanoseconds / 1500, 1, at::get_num_threads()));
  }

  using Input = typename RowProduct<T>::Input;
  using Matrix = typename RowProduct<T>::Matrix;
  using Output = typename RowProduct<T>::Output;
  // Computes columns [columns.first, columns.second) of input · weightᵀ + bias.
  void product(const Member& member, const Input& in, const Matrix& matrix, std::pair<int64_t, int64_t> columns,
               const Output& out) const {
    RowProduct<T>{kernels_, fixed_ + member.id * fixed_count_}.run(in, matrix, columns, out);
  }

  // Returns this thread's range of the n columns. If there are enough columns to divide the work evenly, the range
  // consists of whole blocks of packed matrices.
  static std::pair<int64_t, int64_t> columns_of(const Member& member, int64_t n) {
    return member.part(n, n >= 16 * cpu::kPackOutputs * member.size ? cpu::kPackOutputs : 8);
  }

  void normalise(const float* row, const at::Tensor& weight, int64_t n, float* out) const {
    kernels_.rms_norm(row, data(weight), static_cast<float>(config_.rms_norm_eps),
                      static_cast<float>(config_.norm_offset), n, out);
  }

  // Returns all rows of the residual stream after the norm, or the residual stream itself if there is no weight. This
  // thread may read all of the returned rows.
  const float* norm(const Member& member, const at::Tensor& weight) const {
    if (!weight.defined()) return x_;
    const int64_t e = config_.hidden_size;
    const bool own = count_ <= kPrivateRows;
    float* out = own ? normed_ + member.id * count_ * e : normed_;
    const auto [begin, end] = own ? std::pair<int64_t, int64_t>{0, count_} : member.part(count_);
    for (int64_t r = begin; r < end; ++r) normalise(x_ + r * e, weight, e, out + r * e);
    if (!own) member.barrier();
    return out;
  }

  // Adds a matrix product to the residual stream. If out_norm is defined, the product is normalised first.
  void join(const Member& member, const Input& in, const Matrix& matrix, const at::Tensor& out_norm) const {
    const int64_t e = config_.hidden_size;
    const bool direct = !out_norm.defined();
    product(member, in, matrix, columns_of(member, e), {direct ? x_ : branch_, e, direct});
    member.barrier();
    if (direct) return;
    const auto [begin, end] = member.part(count_);
    for (int64_t r = begin; r < end; ++r) {
      float *branch = branch_ + r * e, *x = x_ + r * e;
      normalise(branch, out_norm, e, branch);
      for (int64_t i = 0; i < e; ++i) x[i] += branch[i];
    }
    member.barrier();
  }

  // Rotates those heads of row r (queries or keys) that lie in `part`, this thread's range of values. With
  // QkNorm::kHead, each head is normalised first.
  void finish_heads(const LayerConfig& flags, const at::Tensor& weight, int64_t r, float* row,
                    std::pair<int64_t, int64_t> part) const {
    const int64_t d = config_.head_dim;
    const size_t which = flags.rope == LayerRope::kLocal ? 1 : 0;
    const int64_t half = half_[which];
    for (int64_t c = part.first; c < part.second; c += d) {
      if (flags.qk_norm == QkNorm::kHead) normalise(row + c, weight, d, row + c);
      if (flags.rope != LayerRope::kNone)
        kernels_.rope(row + c, cos_[which] + r * half, sin_[which] + r * half, 2 * half, row + c);
    }
  }

  void write(int64_t layer, const float* row, bool keys, int64_t r, std::pair<int64_t, int64_t> part) const {
    const int64_t d = config_.head_dim;
    T* to = static_cast<T*>(rows_[static_cast<size_t>(r)].slot) + side_offset(layer, keys);
    for (int64_t c = part.first; c < part.second; c += d) kernels_.narrow(row + c, d, to + c * BlockPool::kTokens);
  }

  // Returns the offset, in elements, of a layer's keys or values within a block.
  int64_t side_offset(int64_t layer, bool keys) const {
    return (2 * layer + (keys ? 0 : 1)) * kv_width_ * BlockPool::kTokens;
  }

  // Computes this thread's share of the query, key and value heads, rotates queries and keys, and writes keys and
  // values to the caches.
  void project(const Member& member, int64_t layer, const float* x) const {
    const LayerWeights& w = decoder_.weights.layers[static_cast<size_t>(layer)];
    const LayerConfig& flags = config_.layers[static_cast<size_t>(layer)];
    const int64_t e = config_.hidden_size, d = config_.head_dim, h = config_.num_heads, g = config_.num_kv_heads;
    const auto [begin, end] = member.part(h + 2 * g);
    const auto columns = [&](int64_t first, int64_t heads) {  // this thread's columns of heads [first, first + heads)
      return std::pair{std::clamp<int64_t>(begin - first, 0, heads) * d,
                       std::clamp<int64_t>(end - first, 0, heads) * d};
    };
    const auto q = columns(0, h), k = columns(h, g), v = columns(h + g, g);
    if (q.first < q.second) product(member, {x, e, count_}, {w.q, &w.q_bias}, q, {q_, heads_width_});
    if (k.first < k.second) product(member, {x, e, count_}, {w.k, &w.k_bias}, k, {k_, kv_width_});
    if (v.first < v.second) product(member, {x, e, count_}, {w.v, &w.v_bias}, v, {v_, kv_width_});
    for (int64_t r = 0; r < count_; ++r) write(layer, v_ + r * kv_width_, false, r, v);
    const auto finish = [&](int64_t r, std::pair<int64_t, int64_t> queries, std::pair<int64_t, int64_t> keys) {
      finish_heads(flags, w.q_norm, r, q_ + r * heads_width_, queries);
      finish_heads(flags, w.k_norm, r, k_ + r * kv_width_, keys);
      write(layer, k_ + r * kv_width_, true, r, keys);
    };
    if (flags.qk_norm != QkNorm::kProjection) {
      for (int64_t r = 0; r < count_; ++r) finish(r, q, k);
      return;
    }
    member.barrier();  // the norm below needs whole rows
    const auto [first, last] = member.part(count_);
    for (int64_t r = first; r < last; ++r) {
      normalise(q_ + r * heads_width_, w.q_norm, heads_width_, q_ + r * heads_width_);
      normalise(k_ + r * kv_width_, w.k_norm, kv_width_, k_ + r * kv_width_);
      finish(r, {0, heads_width_}, {0, kv_width_});
    }
  }

  void attend(const Member& member, int64_t layer) const {
    const int64_t d = config_.head_dim, kv = config_.num_kv_heads, heads = config_.num_heads / kv;
    const auto scale = static_cast<float>(config_.attention_scale()),
               cap = static_cast<float>(config_.attention_soft_cap);
    const std::vector<cpu::Visible>& visible = pass_.visible.at(config_.layers[static_cast<size_t>(layer)].window);
    // Threads take units in turn (0, 1, 2, …), because later rows of a prompt see more keys and take longer.
    for (int64_t unit = member.id; unit < static_cast<int64_t>(pass_.groups.size()) * kv; unit += member.size) {
      const PassRows::Group& group = pass_.groups[static_cast<size_t>(unit / kv)];
      const KvCache& cache = *rows_[static_cast<size_t>(group.first)].cache;
      const int64_t g = unit % kv, at = group.first * heads_width_ + g * heads * d, head = g * BlockPool::kTokens * d;
      const void* const* const blocks = cache.blocks().data();
      kernels_.attention({q_ + at,
                          heads_width_,
                          group.rows,
                          heads,
                          d,
                          {blocks, side_offset(layer, true) + head},
                          {blocks, side_offset(layer, false) + head},
                          visible.data() + group.first,
                          scale,
                          scores_ + member.id * score_count_,
                          pass_.longest,
                          attended_ + at,
                          cap});
    }
  }

  void gate(const float* up, int64_t n, float* gate) const {
    config_.activation == Activation::kSilu ? kernels_.silu_mul(gate, up, n, gate)
                                            : kernels_.gelu_tanh_mul(gate, up, n, gate);
  }

  void feed_forward(const Member& member, const LayerWeights& w, const float* x) const {
    const int64_t e = config_.hidden_size, i = config_.intermediate_size;
    const auto part = columns_of(member, i);
    product(member, {x, e, count_}, {w.gate, &w.gate_bias}, part, {gate_, i});
    product(member, {x, e, count_}, {w.up, &w.up_bias}, part, {up_, i});
    for (int64_t r = 0; r < count_; ++r)
      gate(up_ + r * i + part.first, part.second - part.first, gate_ + r * i + part.first);
    member.barrier();
    join(member, {gate_, i, count_}, {w.down, &w.down_bias}, w.mlp_out_norm);
  }

  // Fills choices_ with the chosen experts of each row and their weights. Choices are sorted by expert, so that an
  // expert's matrices stay in the CPU cache for all of its rows.
  void choose_experts() {
    const int64_t experts = config_.num_experts, taken = config_.experts_per_token;
    std::vector<int64_t>& order = lists_.order;
    order.resize(static_cast<size_t>(experts));
    choices_.clear();
    for (int64_t r = 0; r < count_; ++r) {
      float* logits = router_ + r * experts;
      std::iota(order.begin(), order.end(), int64_t{0});
      std::partial_sort(order.begin(), order.begin() + taken, order.end(), [&](int64_t a, int64_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
      });
      double total = 0, chosen = 0;
      const double top = logits[order[0]];
      for (int64_t k = 0; k < experts; ++k) total += std::exp(logits[k] - top);
      for (int64_t k = 0; k < taken; ++k) chosen += std::exp(logits[order[static_cast<size_t>(k)]] - top);
      for (int64_t k = 0; k < taken; ++k) {
        const int64_t expert = order[static_cast<size_t>(k)];
        choices_.push_back(
            {r, k, expert,
             static_cast<float>(std::exp(logits[expert] - top) / (config_.normalise_experts ? chosen : total))});
      }
    }
    std::sort(choices_.begin(), choices_.end(),
              [](const Choice& a, const Choice& b) { return std::pair(a.expert, a.row) < std::pair(b.expert, b.row); });
  }

  void mixture(const Member& member, const LayerWeights& w, const float* x) {
    const int64_t e = config_.hidden_size, i = config_.expert_intermediate_size, taken = config_.experts_per_token;
    product(member, {x, e, count_}, {w.router}, columns_of(member, config_.num_experts),
            {router_, config_.num_experts});
    member.barrier();
    if (member.id == 0) choose_experts();
    member.barrier();
    const auto part = columns_of(member, i), columns = columns_of(member, e);
    for (const Choice& c : choices_) {
      const ExpertWeights& expert = w.experts[static_cast<size_t>(c.expert)];
      const int64_t at = (c.row * taken + c.place) * i;
      product(member, {x + c.row * e, e, 1}, {expert.gate}, part, {gate_ + at, i});
      product(member, {x + c.row * e, e, 1}, {expert.up}, part, {up_ + at, i});
      gate(up_ + at + part.first, part.second - part.first, gate_ + at + part.first);
    }
    member.barrier();
    for (const Choice& c : choices_) {  // a row's experts are added in ascending order of their index
      float *branch = branch_ + c.row * e, *to = x_ + c.row * e;
      product(member, {gate_ + (c.row * taken + c.place) * i, i, 1}, {w.experts[static_cast<size_t>(c.expert)].down},
              columns, {branch, e});
      for (int64_t n = columns.first; n < columns.second; ++n) to[n] += c.weight * branch[n];
    }
    member.barrier();
  }

  void observe(const Member& member, int64_t layer) {
    if (member.id != 0 || !observer_ || failure_ || !is_observed(observed_, layer)) return;
    try {
      observer_(layer, at::from_blob(x_, {count_, config_.hidden_size}, at::kFloat)
                           .to(decoder_.weights.embed.scalar_type(), false, /*copy=*/true));
    } catch (...) {  // an exception must not escape from a thread of the team
      failure_ = std::current_exception();
    }
  }

  void logits(const Member& member) const {
    const int64_t e = config_.hidden_size, vocab = decoder_.weights.lm_head.size(0);
    const auto cap = static_cast<float>(config_.final_soft_cap);
    const auto columns = columns_of(member, vocab);
    // Rows are processed in blocks. Each thread normalises all rows of a block itself and computes its own columns.
    const auto wanted = static_cast<int64_t>(pass_.logit_rows.size());
    const int64_t block = count_ <= kPrivateRows ? count_ : std::max<int64_t>(1, count_ / member.size);
    float* own = normed_ + member.id * block * e;
    for (int64_t first = 0; first < wanted; first += block) {
      const int64_t rows = std::min(block, wanted - first);
      for (int64_t r = 0; r < rows; ++r)
        normalise(x_ + pass_.logit_rows[static_cast<size_t>(first + r)] * e, decoder_.weights.norm, e, own + r * e);
      product(member, {own, e, rows}, {decoder_.weights.lm_head}, columns, {logits_ + first * vocab, vocab});
      for (int64_t r = first; cap != 0 && r < first + rows; ++r)
        kernels_.soft_cap(logits_ + r * vocab + columns.first, columns.second - columns.first, 1.0f, cap);
    }
  }

  void work(const Member& member) {
    const int64_t e = config_.hidden_size;
    const auto [begin, end] = member.part(count_);
    const float scale = embedding_scale();
    for (int64_t r = begin; r < end; ++r) {
      kernels_.widen(data(decoder_.weights.embed) + rows_[static_cast<size_t>(r)].token * e, e, x_ + r * e);
      for (int64_t i = 0; scale != 1 && i < e; ++i) x_[r * e + i] *= scale;
    }
    member.barrier();
    observe(member, 0);
    for (int64_t l = 0; l < config_.num_layers; ++l) {
      const LayerWeights& w = decoder_.weights.layers[static_cast<size_t>(l)];
      project(member, l, norm(member, w.input_norm));
      member.barrier();
      attend(member, l);
      member.barrier();
      join(member, {attended_, heads_width_, count_}, {w.o, &w.o_bias}, w.attention_out_norm);
      const float* x = norm(member, w.mlp_norm);
      config_.layers[static_cast<size_t>(l)].experts ? mixture(member, w, x) : feed_forward(member, w, x);
      observe(member, l + 1);
    }
    logits(member);
  }

  float embedding_scale() const {  // rounded to the weights' dtype
    T narrow;
    float wide = static_cast<float>(config_.embedding_scale);
    kernels_.narrow(&wide, 1, &narrow);
    kernels_.widen(&narrow, 1, &wide);
    return wide;
  }

  const Decoder& decoder_;
  const DecoderConfig& config_;
  const cpu::Kernels<T>& kernels_;
  const HiddenObserver& observer_;
  const std::vector<int64_t>& observed_;  // layers for which the observer is called
  struct Choice {
    int64_t row, place, expert;
    float weight;
  };
  // Lists that all passes of a thread share, so that later passes reuse the memory and allocate nothing.
  struct Lists {
    PassRows rows;
    std::vector<Choice> choices;
    std::vector<int64_t> order;
  };
  static Lists& lists_of_thread() {
    thread_local Lists lists;
    return lists;
  }
  Lists& lists_ = lists_of_thread();
  PassRows& pass_ = lists_.rows;
  std::vector<PassRows::Row>& rows_ = pass_.rows;
  std::vector<Choice>& choices_ = lists_.choices;
  int64_t count_ = 0, heads_width_ = 0, kv_width_ = 0, inner_ = 0, score_count_ = 0, fixed_count_ = 0;
  bool mixed_ = false, branched_ = false;
  std::array<bool, 2> uses_ = {false, false};  // {global, local}: whether any layer uses this rope
  std::array<int64_t, 2> half_ = {0, 0};
  int threads_ = 1;
  float *x_, *normed_, *q_, *attended_, *k_, *v_, *gate_, *up_, *branch_, *router_, *scores_, *fixed_, *logits_;
  std::array<float*, 2> cos_, sin_;
  std::exception_ptr failure_;
};

template <class T>
at::Tensor run_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                    const std::vector<int64_t>& layers) {
  at::Tensor logits = Pass<T>(decoder, parts, observer, layers).run();
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace

bool cpu_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts) {
  const at::Tensor& embed = decoder.weights.embed;
  const auto dtype = embed.scalar_type();
  if (decoder.group || kernels::reference_forced() || !embed.is_cpu() ||
      (dtype != at::kFloat && dtype != at::kBFloat16))
    return false;
  const auto plain = [&](const at::Tensor& tensor) {
    return !tensor.defined() ||
           (tensor.is_contiguous() && (tensor.scalar_type() == dtype || tensor.scalar_type() == at::kChar ||
                                       tensor.scalar_type() == at::kByte || kernels::is_block_quantised(tensor)));
  };
  for (const LayerWeights& w : decoder.weights.layers) {
    for (const at::Tensor* tensor : {&w.input_norm, &w.q, &w.k, &w.v, &w.q_norm, &w.k_norm, &w.o, &w.attention_out_norm,
                                     &w.mlp_norm, &w.mlp_out_norm, &w.gate, &w.up, &w.down, &w.router}) {
      if (!plain(*tensor)) return false;
    }
    for (const ExpertWeights& expert : w.experts) {
      if (!plain(expert.gate) || !plain(expert.up) || !plain(expert.down)) return false;
    }
    if (!w.experts.empty() && w.mlp_out_norm.defined()) return false;
  }
  return std::all_of(parts.begin(), parts.end(),
                     [&](const SequencePart& part) { return part.cache->dtype() == dtype; });
}

at::Tensor cpu_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                    const std::vector<int64_t>& layers) {
  const bool narrow = decoder.weights.embed.scalar_type() == at::kBFloat16;
  return narrow ? run_pass<cpu::Bf16>(decoder, parts, observer, layers)
                : run_pass<float>(decoder, parts, observer, layers);
}

}  // namespace specdec::model
