// Runs an EAGLE-3 head as a draft. Slot r of a sequence's cache combines token r + 1 of the text with the hidden state
// of position r, so the first token of a text takes no slot, and a text of one token gives no logits.
//
// Rows of the text read the target's states. The target has no state for a drafted token, so that token's row reads the
// output state of its parent's row ("fed back"). The step drops these rows after verification. The head then reads the
// accepted tokens again with the target's states.
#include "engine/decode/runners/eagle_runner.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string>

#include "engine/cache/kv_cache.h"
#include "engine/config/rope.h"
#include "engine/decode/runners/cached_model.h"
#include "engine/decode/runners/round_models.h"
#include "engine/decode/runners/runner_parts.h"
#include "engine/decode/runners/tap_source.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/eagle_cuda.h"
#include "engine/forward/eagle_forward.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::decode {

namespace {

constexpr SequenceId kNobody = -1;

// A drafted token with the output state of its row, which the head feeds back. Nodes are kept after their slots are
// dropped from the cache: for each level of a tree, the head reads all levels again, and the deepest level needs the
// states of the level before.
struct Node {
  int32_t token, parent;  // parent: index of the parent node, −1 for the text
  at::Tensor fed_back;    // [H]
};

struct HeadSequence {
  explicit HeadSequence(model::KvCache cache) : cache(std::move(cache)) {}

  model::KvCache cache;
  SequenceId target = kNobody;
  int64_t tokens = 0;       // number of tokens of the text that were read
  at::Tensor fed_back;      // [H], from the last row of the text; undefined if that row was not computed here
  std::vector<Node> nodes;  // nodes drafted after this text
  int64_t cached_nodes = 0;

  int64_t text_rows() const { return std::max<int64_t>(0, tokens - 1); }
};

class EagleRunner final : public CachedModel<HeadSequence>, public RoundDraft {
 public:
  EagleRunner(std::shared_ptr<const model::EagleHead> head, TapSource& target, int64_t cache_bytes)
      : CachedModel(std::make_shared<model::BlockPool>(head->config.layer, head->weights.fc.device(),
                                                       head->weights.fc.scalar_type(), cache_bytes)),
        head_(std::move(head)),
        target_(target),
        reader_(target.add_reader(head_->config.taps)) {
    if (!config().draft_vocab.empty())
      kept_ids_ = model::draft_vocab_index(config().draft_vocab, head_->weights.fc.device());
  }

  int64_t vocab_size() const override { return config().vocab_size; }
  int64_t max_length() const override { return config().max_position; }
  bool reads_states() const override { return true; }

  SequenceId fork(SequenceId sequence, int64_t length) override {
    const HeadSequence& from = find(sequence);
    const int64_t tokens = std::min(length, from.tokens);
    HeadSequence to(from.cache.prefix(std::max<int64_t>(0, tokens - 1)));
    to.tokens = tokens;
    if (tokens == from.tokens) to.fed_back = from.fed_back;
    return add(std::move(to));
  }
  void close(SequenceId sequence) override {
    const auto it = sequences_.find(sequence);
    if (it == sequences_.end()) return;
    drop_nodes(it->second, 0);
    it->second.cache.publish();
    if (it->second.target != kNobody) reader_->kept.erase(it->second.target);
    sequences_.erase(it);
  }
  int64_t length(SequenceId sequence) const override {
    const HeadSequence& s = find(sequence);
    return s.tokens + s.cached_nodes;
  }
  void truncate(SequenceId sequence, int64_t length) override {
    HeadSequence& s = find(sequence);
    if (length >= s.tokens) return drop_nodes(s, std::min(length - s.tokens, s.cached_nodes));
    drop_nodes(s, 0);
    s.tokens = length;
    s.cache.truncate(s.text_rows());
    s.fed_back = at::Tensor();
    s.nodes.clear();
  }
  // Rows of drafted tokens are dropped, because verification provides better states for them.
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t>) override { truncate(sequence, length); }

  int64_t follow(SequenceId sequence, SequenceId target) override {
    HeadSequence& s = find(sequence);
    if (s.target != target) {
      if (s.target != kNobody) reader_->kept.erase(s.target);
      s.target = target;
      target_.keep_states(*reader_, target);
    }
    const KeptStates kept = kept_states(*reader_, target);
    // A row needs the target's state of the position before its token. If the state for the next row is not stored, the
    // head cannot read further. Otherwise the head can read one token more than there are stored states.
    if (kept.end == 0 || kept.first > s.text_rows()) return s.tokens;
    return std::max(s.tokens, kept.end + 1);
  }

  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    model::with_device_errors([&] { pass(extensions, out); });
  }

  int64_t adopt(SequenceId sequence, std::span<const int32_t> tokens, uint64_t tenant) override {
    if (!pool_->bounded() || tokens.empty()) return 0;
    for (auto& [id, s] : sequences_)
      if (s.cached_nodes == 0) s.cache.publish();
    HeadSequence& s = find(sequence);
    const int64_t found = s.cache.adopt(tokens.subspan(1), text_key(tokens, tenant));
    if (found > 0) s.tokens = found + 1;
    return count_adopted(tokens, s.tokens);
  }
  int64_t cached_prefix_tokens(std::span<const int32_t> tokens, uint64_t tenant) const override {
    if (tokens.empty()) return 0;
    const int64_t found = pool_->find(text_key(tokens, tenant), 0, tokens.subspan(1));
    return found > 0 ? found + 1 : 0;
  }

  bool takes(SequenceId sequence, std::span<const int32_t> text, at::Device device) override {
    const HeadSequence& s = find(sequence);
    const at::Tensor& like = head_->weights.fc;
    return model::cuda_head_library(*head_) && like.device() == device && pool_->dtype() == like.scalar_type() &&
           s.tokens > 0 && s.cached_nodes == 0 && can_read(s, unread(sequence, text));
  }
  int64_t unread(SequenceId sequence, std::span<const int32_t> text) override {
    return static_cast<int64_t>(text.size()) - find(sequence).tokens;
  }
  model::KvCache& cache(SequenceId sequence) override { return find(sequence).cache; }
  const model::BlockPool& pool() const override { return *pool_; }
  std::unique_ptr<RoundDraft::Pass> make_pass(std::span<const Reader> readers, int depth,
                                              RoundDraft::Pass* before) override {
    auto out = std::make_unique<HeadPass>(*head_, kept_ids_);
    for (const Reader& reader : readers) {
      HeadSequence& s = find(reader.sequence);
      add_reader_rows(reader, depth, s.cache, 1, out->pass);
      out->add_results(reader, depth);
      if (depth == 0) out->taps.push_back(taps_of(s, unread(reader.sequence, reader.text)));
    }
    out->follow(readers, depth, static_cast<HeadPass*>(before));
    return out;
  }
  void commit(const Reader& reader, std::span<const int32_t>, RoundDraft::Pass& first, size_t i) override {
    HeadSequence& s = find(reader.sequence);
    const std::span<const int32_t> read = reader.text.subspan(static_cast<size_t>(s.tokens));
    if (s.cache.records()) s.cache.record(read, {});
    s.cache.commit(static_cast<int64_t>(read.size()));
    note_text(s, static_cast<int64_t>(read.size()), static_cast<HeadPass&>(first).fed_back[static_cast<int64_t>(i)]);
  }

 private:
  // A pass of a round. The first pass reads the target's states; each later one reads the states that the previous pass
  // fed back.
  struct HeadPass final : RoundDraft::Pass {
    HeadPass(const model::EagleHead& of, const at::Tensor& kept) : head(of), pass(of), kept_ids(kept) {}
    int64_t num_rows() const override { return pass.num_rows(); }
    // Counts the sequence's rows that have logits (result rows), and records the index of the first.
    void add_results(const Reader& reader, int depth) {
      sequences.push_back(reader.sequence);
      first_result.push_back(num_results);
      num_results += depth == 0 ? 1 : reader.shape->size(depth - 1);
    }
    // For each row of this pass, finds its parent's row among those with logits (result rows) of the previous pass. The
    // row reads the state that its parent's row fed back.
    void follow(std::span<const Reader> readers, int depth, const HeadPass* pass_before) {
      before = pass_before;
      if (!before) return;
      for (const Reader& reader : readers) {
        const auto found = std::find(before->sequences.begin(), before->sequences.end(), reader.sequence);
        const int32_t first = before->first_result[static_cast<size_t>(found - before->sequences.begin())];
        const DraftShape& shape = *reader.shape;
        for (int32_t node = shape.begin(depth - 1); node < shape.begin(depth); ++node)
          rows.push_back(depth == 1 ? first
                                    : first + shape.parents()[static_cast<size_t>(node)] - shape.begin(depth - 2));
      }
    }
    // Returns whether, for every i, row i reads the state of row i of those with logits in the previous pass.
    bool in_order() const {
      if (static_cast<int32_t>(rows.size()) != before->num_results) return false;
      for (size_t i = 0; i < rows.size(); ++i)
        if (rows[i] != static_cast<int32_t>(i)) return false;
      return true;
    }
    void describe(model::DeviceUpload& upload, int32_t live, bool may_rest) override {
      pass.describe(upload, live, may_rest);
      rows_at = upload.add(rows);
    }
    size_t live_place() const override { return pass.live_place(); }
    size_t id_place(int64_t row) const override { return pass.id_place(row); }
    void run(const model::DeviceUpload& upload, const at::Tensor& out) override {
      at::Tensor hidden = before ? before->fed_back : model::fuse_taps(head, at::cat(taps));
      if (before && !in_order())
        hidden = hidden.index_select(0, upload.tensor(rows_at, static_cast<int64_t>(rows.size()), at::kInt));
      const model::EagleOutput output = pass.run(upload, hidden.contiguous());
      fed_back = output.fed_back;
      model::write_logits(pass.score(output.normed, upload), kept_ids, out);
    }

    const model::EagleHead& head;
    model::CudaHeadPass pass;
    at::Tensor kept_ids;
    std::vector<SequenceId> sequences;
    std::vector<at::Tensor> taps;  // only in the first pass: the target's states, one tensor per sequence
    const HeadPass* before = nullptr;
    std::vector<int32_t> first_result;  // index of each sequence's first row with logits
    int32_t num_results = 0;
    std::vector<int32_t> rows;  // per row: its parent's index among the rows with logits of `before`
    size_t rows_at = 0;
    at::Tensor fed_back;  // [rows with logits, H], set by run()
  };

  const model::DecoderConfig& config() const { return head_->config.layer; }

  void pass(std::span<const Extension> extensions, LogitRows& out) {
    c10::InferenceMode guard;
    std::vector<at::Tensor> hidden;
    std::vector<int64_t> wanted;  // rows that need logits
    parts_.clear();
    int64_t rows = 0;
    for (const Extension& e : extensions) {
      HeadSequence& s = find(e.sequence);
      model::SequencePart& part = parts_.emplace_back();
      part.cache = &s.cache;
      const bool begins = s.tokens == 0;  // the first token of a text takes no slot
      part.tokens = begins ? e.tokens.subspan(1) : e.tokens;
      hidden.push_back(states_of(s, e, part));
      const auto count = static_cast<int64_t>(part.tokens.size());
      if (count < e.num_logits || (begins && !e.parents.empty()))
        throw Error(ErrorKind::kInternal, "an EAGLE-3 head has no logits after the first token of a text");
      for (int64_t row = rows + count - e.num_logits; row < rows + count; ++row) wanted.push_back(row);
      rows += count;
    }
    check_capacity(parts_, *pool_, false);
    at::Tensor fed_back, logits;
    if (rows > 0) {
      const auto has_rows = [](const model::SequencePart& part) { return !part.tokens.empty(); };
      std::vector<model::SequencePart> parts;
      std::copy_if(parts_.begin(), parts_.end(), std::back_inserter(parts), has_rows);
      const model::EagleOutput output = model::eagle_pass(*head_, parts, at::cat(hidden));
      fed_back = output.fed_back;
      if (!wanted.empty())
        logits = model::eagle_logits(
            *head_, output.normed.index_select(0, at::tensor(wanted, at::kLong).to(output.normed.device())));
    }
    int64_t row = 0;
    for (size_t i = 0; i < extensions.size(); ++i) {
      const auto count = static_cast<int64_t>(parts_[i].tokens.size());
      note(extensions[i], count > 0 ? fed_back.narrow(0, row, count) : at::Tensor());
      row += count;
    }
    write_rows(logits, static_cast<int64_t>(wanted.size()), kept_ids_, head_->weights.fc.device(), out);
  }

  // The first token of a text takes no slot, so the key under which blocks are cached must include it.
  static uint64_t text_key(std::span<const int32_t> tokens, uint64_t tenant) {
    return tenant ^ ((static_cast<uint64_t>(tokens.front()) + 1) * 0x9e3779b97f4a7c15ull);
  }

  // Drops the slots of all drafted tokens but the first `count`. Their states are kept in `nodes`.
  static void drop_nodes(HeadSequence& s, int64_t count) {
    if (s.cached_nodes == count) return;
    s.cached_nodes = count;
    s.cache.truncate(s.text_rows() + count);
  }

  // Returns the states [rows, H] that the rows of an extension read, and sets the part's mask and positions.
  at::Tensor states_of(HeadSequence& s, const Extension& e, model::SequencePart& part) const {
    if (e.parents.empty() && s.cached_nodes == 0 && can_read(s, static_cast<int64_t>(e.tokens.size()))) {
      const auto count = static_cast<int64_t>(part.tokens.size());
      if (count == 0) return at::empty({0, config().hidden_size}, head_->weights.fc.options());
      return model::fuse_taps(*head_, taps_of(s, count));
    }
    if (e.parents.empty() ? e.tokens.size() != 1 : s.cached_nodes != 0)
      throw Error(ErrorKind::kInternal,
                  "an EAGLE-3 head drafts one token after another, or a tree from its first level");
    std::vector<at::Tensor> states;
    for (size_t i = 0; i < e.tokens.size(); ++i) {
      const int64_t parent = e.parents.empty() ? s.cached_nodes - 1 : e.parents[i];
      const at::Tensor state = parent < 0 ? s.fed_back : state_of_node(s, e, static_cast<size_t>(parent));
      if (!state.defined()) throw Error(ErrorKind::kInternal, "an EAGLE-3 head has no state to draft this token from");
      states.push_back(state);
    }
    if (!e.parents.empty()) set_tree(e.parents, part);
    return at::stack(states);
  }
  // Returns the target's states for the next `count` rows of the text.
  at::Tensor taps_of(const HeadSequence& s, int64_t count) const {
    const KeptStates kept = kept_states(*reader_, s.target);
    return kept.rows.narrow(0, s.text_rows() - kept.first, count);
  }
  // Returns whether the target's states for `count` more tokens of the text are stored.
  bool can_read(const HeadSequence& s, int64_t count) const {
    if (s.target == kNobody) return false;
    const KeptStates kept = kept_states(*reader_, s.target);
    return s.tokens + count == 1 || (kept.first <= s.text_rows() && s.tokens + count <= kept.end + 1);
  }
  // Returns the state of a drafted node. Returns an undefined tensor if no earlier pass had this node; in a tree, token
  // and parent must match.
  static at::Tensor state_of_node(const HeadSequence& s, const Extension& e, size_t node) {
    if (node >= s.nodes.size()) return {};
    const Node& found = s.nodes[node];
    if (!e.parents.empty() && (found.token != e.tokens[node] || found.parent != e.parents[node])) return {};
    return found.fed_back;
  }

  // Records which tokens a pass has read; `fed_back` [rows, H] are the states that its rows fed back.
  void note(const Extension& e, const at::Tensor& fed_back) {
    HeadSequence& s = find(e.sequence);
    const auto count = static_cast<int64_t>(e.tokens.size());
    if (e.parents.empty() && s.cached_nodes == 0 && can_read(s, count)) {
      note_text(s, count, fed_back.defined() ? fed_back[-1] : at::Tensor());
      return;
    }
    const auto first = static_cast<size_t>(s.cached_nodes);
    s.nodes.resize(first);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      const int32_t parent = e.parents.empty() ? static_cast<int32_t>(first) - 1 : e.parents[at];
      s.nodes.push_back({e.tokens[at], parent, fed_back[i].clone()});
    }
    s.cached_nodes += count;
  }

  // Records that `count` more tokens of the text were read; `last` [H] is the state that their last row fed back.
  void note_text(HeadSequence& s, int64_t count, const at::Tensor& last) {
    s.tokens += count;
    s.fed_back = last.defined() ? last.clone() : at::Tensor();
    s.nodes.clear();
    // The step may be undone, and the last token read again, so the state that the last token needs is not dropped.
    forget_states(*reader_, s.target, s.tokens - 2);
  }

  std::shared_ptr<const model::EagleHead> head_;
  at::Tensor kept_ids_;  // token ids of a reduced draft vocabulary; undefined: all ids
  TapSource& target_;
  std::shared_ptr<TapReader> reader_;
  std::vector<model::SequencePart> parts_;
};

}  // namespace

std::unique_ptr<CausalModel> make_eagle_runner(std::shared_ptr<const model::EagleHead> head, CausalModel& target,
                                               int64_t cache_bytes) {
  auto* const source = dynamic_cast<TapSource*>(&target);
  if (!source) throw Error(ErrorKind::kInternal, "an EAGLE-3 head needs the runner of a real target");
  if (model::rope_varies(head->config.layer.rope))
    throw Error(ErrorKind::kModel,
                "rope_scaling: an EAGLE-3 head whose rope depends on the length of the text (dynamic, longrope) cannot "
                "draft");
  return std::make_unique<EagleRunner>(std::move(head), *source, cache_bytes);
}

}  // namespace specdec::decode
