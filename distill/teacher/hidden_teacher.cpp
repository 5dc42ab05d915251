#include "distill/teacher/hidden_teacher.h"

#include <ATen/core/grad_mode.h>

#include "engine/forward/forward.h"

namespace specdec::distill {

namespace {

class HiddenTeacher final : public Teacher {
 public:
  HiddenTeacher(std::shared_ptr<const model::Decoder> head, std::shared_ptr<const HiddenFiles> files,
                const std::vector<TokenRow>& rows)
      : head_(std::move(head)), files_(std::move(files)), rows_(rows) {}

  TargetRows rows(const Batch& batch) override {
    at::NoGradGuard guard;
    const int64_t count = batch.rows.numel(), size = head_->config.hidden_size, width = batch.tokens.size(1);
    const at::Tensor states = at::empty({count, size}, at::kFloat), normed = at::zeros({count, 1}, at::kBool);
    const int64_t* position = batch.rows.const_data_ptr<int64_t>();
    std::vector<float> read;
    for (int64_t i = 0; i < count;) {
      const int64_t b = position[i] / width;
      int64_t end = i + 1;
      while (end < count && position[end] / width == b) ++end;
      const int64_t first = position[i] % width, last = position[end - 1] % width;
      const HiddenFile& file = file_of(batch, b);
      read.resize(static_cast<size_t>((last + 1 - first) * size));
      read_states(file, size, first, last + 1, read.data());
      if (file.normed) normed.slice(0, i, end).fill_(true);
      for (; i < end; ++i)
        std::copy_n(read.data() + (position[i] % width - first) * size, size,
                    states.mutable_data_ptr<float>() + i * size);
    }
    return [states, normed, head = head_](int64_t begin, int64_t end, const DraftRows&) {
      at::NoGradGuard inner;
      const at::Tensor& weight = head->weights.norm;
      const at::Tensor raw = states.slice(0, begin, end).to(weight.options());
      const at::Tensor done = normed.slice(0, begin, end).to(weight.device());
      return model::normed_logits(*head, at::where(done, raw, model::final_norm(*head, raw)));
    };
  }

 private:
  const HiddenFile& file_of(const Batch& batch, int64_t b) const {
    const TokenRow& row = rows_[batch.row_index[static_cast<size_t>(b)]];
    const HiddenFile* file = files_->find(row);
    if (!file) throw Error(ErrorKind::kInternal, "hidden states: row " + row.id + " has no file");
    return *file;
  }

  std::shared_ptr<const model::Decoder> head_;
  std::shared_ptr<const HiddenFiles> files_;
  const std::vector<TokenRow>& rows_;
};

}  // namespace

HiddenSource::HiddenSource(std::shared_ptr<const model::Decoder> head, HiddenFiles files)
    : head_(std::move(head)), files_(std::make_shared<const HiddenFiles>(std::move(files))) {}

std::unique_ptr<Teacher> HiddenSource::teach(const std::vector<TokenRow>& rows, int64_t) const {
  return std::make_unique<HiddenTeacher>(head_, files_, rows);
}

std::vector<float> norm_factors(const model::Decoder& head) {
  const at::Tensor factors = (head.weights.norm.to(at::kFloat) + head.config.norm_offset).cpu().contiguous();
  return {factors.const_data_ptr<float>(), factors.const_data_ptr<float>() + factors.numel()};
}

}  // namespace specdec::distill
