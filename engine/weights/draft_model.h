// A draft of either kind, loaded for decoding: a decoder, or an EAGLE-3 head.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "engine/weights/eagle_head.h"
#include "engine/weights/weights.h"

namespace specdec::model {

struct DraftModel {
  std::shared_ptr<const Decoder> decoder = nullptr;
  std::shared_ptr<const EagleHead> head = nullptr;

  explicit operator bool() const { return decoder || head; }
  // The decoder's configuration, or that of the head's layer.
  const DecoderConfig& config() const { return head ? head->config.layer : decoder->config; }
};

// Returns whether the directory holds an EAGLE-3 head. Throws Error(kModel) if config.json cannot be read.
bool holds_eagle_head(const std::filesystem::path& directory);

// The configuration of a draft for one target. Of a head, `config` describes its one layer, and so the size of its
// cache.
struct DraftConfig {
  DecoderConfig config;
  std::optional<EagleConfig> head;
};
DraftConfig load_draft_config(const std::filesystem::path& directory, const DecoderConfig& target);

// Resolves --dtype for a draft that decodes on a device. A head has only plain weights: it then gets side_dtype().
at::ScalarType resolve_draft_dtype(const std::string& flag, const DecoderConfig& config, bool head, at::Device device);

// Loads a draft as load_for_decoding() does. A head shares the target's embedding.
DraftModel load_draft_model(const std::filesystem::path& directory, const Decoder& target, at::Device device,
                            at::ScalarType dtype);

}  // namespace specdec::model
