#include "engine/decode/runners/draft.h"

#include "base/error.h"
#include "base/schema/draft_kind.h"
#include "engine/forward/eagle_forward.h"

namespace specdec::decode {

namespace {

namespace fs = std::filesystem;

DraftConfig decoder_config(const fs::path& directory, const model::DecoderConfig&) {
  return {model::load_decoder_config(directory), std::nullopt};
}
DraftPtr load_decoder(const fs::path& directory, const model::Decoder&, at::Device device, at::ScalarType dtype) {
  return make_draft(model::load_for_decoding(directory, device, dtype, model::Role::kDraft));
}

DraftConfig eagle_config(const fs::path& directory, const model::DecoderConfig& target) {
  const model::EagleConfig head = model::load_eagle_config(directory, target);
  return {head.layer, model::head_memory(head)};
}
DraftPtr load_eagle(const fs::path& directory, const model::Decoder& target, at::Device device, at::ScalarType dtype) {
  return make_draft(std::make_shared<const model::EagleHead>(model::load_eagle_head(directory, target, device, dtype)));
}

// A kind of draft that specdec supports.
struct Row {
  DraftKind kind;
  DraftConfig (*config)(const fs::path& directory, const model::DecoderConfig& target);
  DraftPtr (*load)(const fs::path& directory, const model::Decoder& target, at::Device device, at::ScalarType dtype);
};
constexpr Row kDecoded[] = {
    {DraftKind::kModel, decoder_config, load_decoder},
    {DraftKind::kEagle3, eagle_config, load_eagle},
};

const Row& row_of(const fs::path& directory) {
  const DraftKind kind = kind_of_draft(directory);
  for (const Row& row : kDecoded)
    if (row.kind == kind) return row;
  throw Error(ErrorKind::kModel, directory.string() + ": " + name_of(kind) +
                                     ": specdec runs small models and EAGLE-3 heads; " + loaded_by(kind));
}

}  // namespace

std::unique_ptr<CausalModel> make_draft_runner(const DraftPtr& draft, CausalModel& target, int64_t cache_bytes) {
  return draft ? draft->make_runner(target, cache_bytes) : nullptr;
}

DraftConfig load_draft_config(const fs::path& directory, const model::DecoderConfig& target) {
  return row_of(directory).config(directory, target);
}

at::ScalarType resolve_draft_dtype(const std::string& flag, const DraftConfig& draft, at::Device device,
                                   at::ScalarType target) {
  const at::ScalarType dtype = model::resolve_decoding_dtype(flag, draft.config, device);
  if (draft.head) return model::side_dtype(dtype, draft.config);
  return flag == "auto" && device.is_cpu() && target == model::kAsStored && dtype != model::kAsStored ? at::kChar
                                                                                                      : dtype;
}

DraftPtr load_draft(const fs::path& directory, const model::Decoder& target, at::Device device, at::ScalarType dtype) {
  return row_of(directory).load(directory, target, device, dtype);
}

}  // namespace specdec::decode
