#include "distill/teacher/label_target.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "data/shards/shard_reader.h"
#include "distill/labels/label_files.h"
#include "distill/rows/batcher.h"
#include "distill/teacher/as_served.h"
#include "distill/teacher/teacher.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/forward.h"

namespace specdec::distill {

namespace {

constexpr int64_t kPassTokens = 2048, kPassValues = int64_t{1} << 23;

template <class T>
void append_values(const at::Tensor& from, std::vector<T>& to) {
  const at::Tensor values = from.contiguous();
  const T* begin = static_cast<const T*>(values.const_data_ptr());
  to.insert(to.end(), begin, begin + values.numel());
}

class TargetLabels {
 public:
  TargetLabels(const LabelOptions& options, const std::shared_ptr<const model::Decoder>& target,
               const LabelIndex& index)
      : target_(*target), served_(ServedTarget::of(target)), index_(index), temperature_(options.temperature) {}

  // Computes the labels of the rows with the indices `rows`, in this order.
  std::vector<RowLabels> label(const std::vector<TokenRow>& all, const std::vector<size_t>& rows) const {
    at::NoGradGuard guard;
    std::vector<RowLabels> out(rows.size());
    const Batch batch = make_batch(all, rows);
    if (batch.rows.numel() == 0) return out;
    const std::vector<at::Tensor> parts = index_.kind == "hidden" ? hidden(batch) : top_k(batch);
    int64_t begin = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      RowLabels& row = out[i];
      row.positions = learnt_positions(all[rows[i]]);
      const auto part = [&](size_t p) { return parts[p].slice(0, begin, begin + row.positions); };
      if (index_.kind == "hidden") {
        append_values(part(0), row.hidden);
      } else {
        append_values(part(0), row.ids);
        append_values(part(1), row.logprobs);
        append_values(part(2), row.rest);
      }
      begin += row.positions;
    }
    return out;
  }

 private:
  std::vector<at::Tensor> hidden(const Batch& batch) const {
    const at::Tensor states = (served_ ? served_->hidden_rows(batch) : hidden_rows(target_, batch)).to(at::kBFloat16);
    check_finite(states);
    return {states.cpu()};
  }

  std::vector<at::Tensor> top_k(const Batch& batch) const {
    const RowLogits logits = row_logits(target_, batch, nullptr, served_.get());
    const int64_t count = batch.rows.numel(), block = std::max<int64_t>(1, kPassValues / index_.vocab_size);
    std::vector<at::Tensor> ids, logprobs, rest;
    for (int64_t begin = 0; begin < count; begin += block) {
      at::Tensor all = at::log_softmax(logits(begin, std::min(count, begin + block)).to(at::kFloat) / temperature_, -1);
      check_finite(std::get<0>(all.max(-1)));
      const auto [values, index] = all.topk(index_.top_k, -1);
      logprobs.push_back(values.clamp_min(-1e4).cpu());
      ids.push_back(index.to(at::kInt).cpu());
      all.scatter_(1, index, -std::numeric_limits<double>::infinity());
      rest.push_back(all.logsumexp(-1).clamp(kLeastLogRest, 0).cpu());
    }
    return {at::cat(ids), at::cat(logprobs), at::cat(rest)};
  }

  static void check_finite(const at::Tensor& values) {
    if (!at::isfinite(values).all().item<bool>())
      throw Error(ErrorKind::kModel, "the target gives values that are not finite: use a wider --dtype");
  }

  const model::Decoder& target_;
  std::shared_ptr<ServedTarget> served_;  // null: texts run side by side
  const LabelIndex& index_;
  double temperature_;
};

LabelResult label(const LabelOptions& o, const ProgressFn& progress) {
  validate(o);
  const data::ShardReader reader(o.data);
  LabelIndex index = new_label_index(o, reader);
  const model::DecoderConfig config = model::load_decoder_config(o.target);
  index.vocab_size = config.vocab_size;
  if (o.hidden) index.hidden_size = config.hidden_size;
  LabelWriter writer(o.out, index, o.resume);
  LabelResult result;
  result.kept = writer.next_row();
  if (o.device.threads > 0) at::set_num_threads(o.device.threads);
  if (progress) progress({"loading the target", 0, 0, "", o.target});
  const auto target =
      std::make_shared<model::Decoder>(load_teacher(o.target, model::resolve_device(o.device.device), o.device.dtype));
  target->config.draft_vocab.clear();
  std::vector<TokenRow> rows = reader.rows("all");
  for (TokenRow& row : rows)
    if (static_cast<int64_t>(row.tokens.size()) > config.max_position)
      row.tokens.resize(static_cast<size_t>(config.max_position)), row.loss_mask.resize(row.tokens.size());
  const TargetLabels labels(o, target, writer.index());
  for (auto next = static_cast<size_t>(writer.next_row()); next < rows.size();) {
    if (stop_requested()) {
      writer.flush();
      throw Error(ErrorKind::kNetwork, "stopped by a signal: the same command with --resume goes on");
    }
    std::vector<size_t> group;
    size_t longest = 0;
    for (; next < rows.size(); ++next) {
      const size_t width = std::max(longest, rows[next].tokens.size());
      if (!group.empty() && static_cast<int64_t>(width * (group.size() + 1)) > kPassTokens) break;
      longest = width;
      group.push_back(next);
    }
    for (const RowLabels& row : labels.label(rows, group)) writer.add(row);
    result.made += static_cast<int64_t>(group.size());
    if (progress) progress({"label", static_cast<double>(next), static_cast<double>(rows.size()), "rows", ""});
  }
  writer.finish();
  result.index = writer.index();
  return result;
}

}  // namespace

LabelResult label_by_target(const LabelOptions& o, const ProgressFn& progress) {
  return model::with_device_errors([&] { return label(o, progress); });
}

}  // namespace specdec::distill
