#include "engine/weights/draft_model.h"

#include "base/error.h"
#include "base/schema/draft_kind.h"

namespace specdec::model {

bool holds_eagle_head(const std::filesystem::path& directory) { return kind_of_draft(directory) == DraftKind::kEagle3; }

DraftConfig load_draft_config(const std::filesystem::path& directory, const DecoderConfig& target) {
  const DraftKind kind = kind_of_draft(directory);
  if (kind != DraftKind::kModel && kind != DraftKind::kEagle3)
    throw Error(ErrorKind::kModel, directory.string() + ": " + name_of(kind) +
                                       ": specdec runs small models and EAGLE-3 heads; " + loaded_by(kind));
  if (kind == DraftKind::kModel) return {load_decoder_config(directory), std::nullopt};
  const EagleConfig head = load_eagle_config(directory, target);
  return {head.layer, head};
}

at::ScalarType resolve_draft_dtype(const std::string& flag, const DecoderConfig& config, bool head, at::Device device) {
  const at::ScalarType dtype = resolve_decoding_dtype(flag, config, device);
  return head ? side_dtype(dtype, config) : dtype;
}

DraftModel load_draft_model(const std::filesystem::path& directory, const Decoder& target, at::Device device,
                            at::ScalarType dtype) {
  if (!holds_eagle_head(directory)) return {load_for_decoding(directory, device, dtype, Role::kDraft), nullptr};
  return {nullptr, std::make_shared<const EagleHead>(load_eagle_head(directory, target, device, dtype))};
}

}  // namespace specdec::model
