// A target that runs elsewhere and left the hidden states of its last layer in files (hidden_files.h). Only its final
// norm and its head are here.
#pragma once

#include <memory>

#include "distill/teacher/hidden_files.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

class HiddenSource final : public TeacherSource {
 public:
  // `head` has the target's norm and head (model::load_head).
  HiddenSource(std::shared_ptr<const model::Decoder> head, HiddenFiles files);
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override;
  bool has(const TokenRow& row) const override { return files_->find(row) != nullptr; }

 private:
  std::shared_ptr<const model::Decoder> head_;
  std::shared_ptr<const HiddenFiles> files_;
};

// Returns what the final norm of `head` multiplies by, as fp32.
std::vector<float> norm_factors(const model::Decoder& head);

}  // namespace specdec::distill
