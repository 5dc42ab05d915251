// A teacher that reads the hidden states of the target's last layer from files (hidden_files.h) and computes the logits
// with the target's final norm and output head, the only weights that are loaded.
#pragma once

#include <memory>

#include "distill/teacher/hidden_files.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

class HiddenSource final : public TeacherSource {
 public:
  // `head` has only the target's final norm and output head (model::load_head).
  HiddenSource(std::shared_ptr<const model::Decoder> head, HiddenFiles files);
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override;
  bool has(const TokenRow& row) const override { return files_->find(row) != nullptr; }

 private:
  std::shared_ptr<const model::Decoder> head_;
  std::shared_ptr<const HiddenFiles> files_;
};

// Returns the weights of the final norm of `head` in fp32.
std::vector<float> norm_factors(const model::Decoder& head);

}  // namespace specdec::distill
