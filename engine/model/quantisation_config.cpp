// Parses quantization_config of config.json, which says how a checkpoint stores its matrices. Formats that are not
// listed here are refused with an error that names them.
#include "engine/model/families.h"

namespace specdec::model {

namespace {

constexpr ErrorKind kQuantError = ErrorKind::kModel;

[[noreturn]] void refuse_quantisation(const std::string& where, const std::string& found) {
  throw Error(kQuantError, where + ": " + found +
                               " is not supported; supported: fp8, compressed-tensors (float-quantized), gptq (4 and 8 "
                               "bits), awq (4 bits, gemm); "
                               "else use the fp32, bf16 or fp16 weights");
}

void parse_blocks(const Json& object, const char* key, const std::string& where, Quantisation& out) {
  if (!object.contains(key) || object.at(key).is_null()) return;
  const Json& sizes = json_array(object, key, 2, where, kQuantError);
  if (sizes.size() != 2) throw Error(kQuantError, where + ": " + key + ": expected two sizes");
  out.block_rows = json_int(Json{{key, sizes[0]}}, key, {1, 1 << 20}, where, kQuantError);
  out.block_columns = json_int(Json{{key, sizes[1]}}, key, {1, 1 << 20}, where, kQuantError);
}

void parse_compressed(const Json& object, const std::string& where, Quantisation& out) {
  out.method = Quantisation::Method::kFp8;
  const std::string format = json_string(object, "format", "", where, kQuantError);
  if (format != "float-quantized" && format != "naive-quantized")
    refuse_quantisation(where, "compressed-tensors format '" + format + "'");
  for (const auto& [name, group] : json_object(object, "config_groups", 64, where, kQuantError).items()) {
    const std::string at = where + ": config_groups: " + name;
    if (!group.is_object()) throw Error(kQuantError, at + ": expected an object");
    const Json& weights = json_object(group, "weights", 64, at, kQuantError);
    const int64_t bits = json_int(weights, "num_bits", {1, 64}, at, kQuantError);
    const std::string type = json_string(weights, "type", "", at, kQuantError);
    if (bits != 8 || type != "float")
      refuse_quantisation(at, "weights of " + std::to_string(bits) + " bits, type '" + type + "',");
    parse_blocks(weights, "block_structure", at, out);
  }
}

}  // namespace

Quantisation parse_quantisation(const Json& config, const std::string& where) {
  Quantisation out;
  if (!config.contains("quantization_config") || config["quantization_config"].is_null()) return out;
  const std::string at = where + ": quantization_config";
  const Json& object = json_object(config, "quantization_config", 256, where, kQuantError);
  const std::string method = json_string(object, "quant_method", "", at, kQuantError);
  if (method == "compressed-tensors") {
    parse_compressed(object, at, out);
  } else if (method == "fp8") {
    out.method = Quantisation::Method::kFp8;
    const std::string format = json_string(object, "fmt", "e4m3", at, kQuantError);
    if (format != "e4m3" && format != "float8_e4m3fn") refuse_quantisation(at, "fp8 of fmt '" + format + "'");
    parse_blocks(object, "weight_block_size", at, out);
  } else if (method == "gptq" || method == "awq") {
    const bool gptq = method == "gptq";
    out.method = gptq ? Quantisation::Method::kGptq : Quantisation::Method::kAwq;
    out.bits = json_int(object, "bits", {.low = 1, .high = 64, .fallback = 4}, at, kQuantError);
    if (out.bits != 4 && !(gptq && out.bits == 8))
      refuse_quantisation(at, method + " of " + std::to_string(out.bits) + " bits");
    const int64_t group =
        json_int(object, "group_size", {.low = -1, .high = 1 << 20, .fallback = 128}, at, kQuantError);
    out.group_size = group > 0 ? group : 0;
    const std::string format =
        json_string(object, gptq ? "checkpoint_format" : "version", gptq ? "gptq" : "gemm", at, kQuantError);
    if (gptq ? format != "gptq" && format != "gptq_v2" : format != "gemm" && format != "GEMM")
      refuse_quantisation(at, method + " of format '" + format + "'");
    out.zero_offset = format == "gptq" ? 1 : 0;  // format gptq stores zero points minus one; gptq_v2 does not
  } else {
    refuse_quantisation(at, "quant_method '" + method + "'");
  }
  return out;
}

}  // namespace specdec::model
