// Parses quantization_config of config.json, which describes how a checkpoint stores its matrices. Formats that are not
// listed in this file are refused with an error that names them.
#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "engine/config/families.h"

namespace specdec::model {

namespace {

constexpr ErrorKind kQuantError = ErrorKind::kModel;

[[noreturn]] void refuse_quantisation(const std::string& where, const std::string& found) {
  throw Error(kQuantError, where + ": " + found +
                               " is not supported; supported: fp8, compressed-tensors (float-quantized), gptq (4 and 8 "
                               "bits), awq (4 bits, gemm); "
                               "else use the fp32, bf16 or fp16 weights");
}

// `keys` are the names that several quantisers give to one setting. Returns the setting's value, or null if no key is
// present. Throws if several keys are present with different values.
Json stated(const Json& object, std::initializer_list<const char*> keys, const std::string& where) {
  const auto lower = [](Json value) {
    if (!value.is_string()) return value;
    std::string text = value.get<std::string>();
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return Json(text);
  };
  Json found;
  const char* by = nullptr;
  for (const char* key : keys) {
    if (!object.contains(key) || object.at(key).is_null()) continue;
    const Json value = lower(object.at(key));
    if (by && value != found)
      throw Error(kQuantError, where + ": " + by + " and " + key + " disagree: leave out the one that is wrong");
    found = value;
    by = key;
  }
  return found;
}

// Parses the settings of GPTQ and AWQ. llm-awq writes w_bit and q_group_size. GPTQModel writes `format` beside
// checkpoint_format, and lists matrices with settings of their own in `dynamic`.
void parse_integers(const Json& object, const std::string& method, const std::string& where, Quantisation& out) {
  const bool gptq = method == "gptq";
  out.method = gptq ? Quantisation::Method::kGptq : Quantisation::Method::kAwq;
  out.bits = json_int({{"bits", stated(object, {"bits", "w_bit"}, where)}}, "bits",
                      {.low = 1, .high = 64, .fallback = 4}, where, kQuantError);
  if (out.bits != 4 && !(gptq && out.bits == 8))
    refuse_quantisation(where, method + " of " + std::to_string(out.bits) + " bits");
  const Json group = stated(object, {"group_size", "q_group_size"}, where);
  out.group_size = std::max<int64_t>(0, json_int({{"group_size", group}}, "group_size",
                                                 {.low = -1, .high = 1 << 20, .fallback = 128}, where, kQuantError));
  out.group_size_binds = !group.is_null() && !(object.contains("dynamic") && !object["dynamic"].empty());
  const Json named = gptq ? stated(object, {"checkpoint_format", "format"}, where)
                          : stated(object, {"version", "checkpoint_format", "format"}, where);
  const std::string format = json_string({{"format", named}}, "format", gptq ? "gptq" : "gemm", where, kQuantError);
  if (gptq ? format != "gptq" && format != "gptq_v2" : format != "gemm")
    refuse_quantisation(where, method + " of format '" + format + "'");
  out.zero_offset = format == "gptq" ? 1 : 0;  // format gptq stores each zero point minus one; gptq_v2 does not
}

// Parses the block size of fp8 scales into `out`. Returns false if the object has none.
bool parse_blocks(const Json& object, const char* key, const std::string& where, Quantisation& out) {
  if (!object.contains(key) || object.at(key).is_null()) return false;
  const Json& sizes = json_array(object, key, 2, where, kQuantError);
  if (sizes.size() != 2) throw Error(kQuantError, where + ": " + key + ": expected two sizes");
  out.block_rows = json_int(Json{{key, sizes[0]}}, key, {1, 1 << 20}, where, kQuantError);
  out.block_columns = json_int(Json{{key, sizes[1]}}, key, {1, 1 << 20}, where, kQuantError);
  return true;
}

void parse_compressed(const Json& object, const std::string& where, Quantisation& out) {
  out.method = Quantisation::Method::kFp8;
  const std::string format = json_string(object, "format", "", where, kQuantError);
  if (format != "float-quantized" && format != "naive-quantized")
    refuse_quantisation(where, "compressed-tensors format '" + format + "'");
  const Json& groups = json_object(object, "config_groups", 64, where, kQuantError);
  out.blocks_bind = !groups.empty();
  for (const auto& [name, group] : groups.items()) {
    const std::string at = where + ": config_groups: " + name;
    if (!group.is_object()) throw Error(kQuantError, at + ": expected an object");
    const Json& weights = json_object(group, "weights", 64, at, kQuantError);
    const int64_t bits = json_int(weights, "num_bits", {1, 64}, at, kQuantError);
    const std::string type = json_string(weights, "type", "", at, kQuantError);
    if (bits != 8 || type != "float")
      refuse_quantisation(at, "weights of " + std::to_string(bits) + " bits, type '" + type + "',");
    out.blocks_bind = parse_blocks(weights, "block_structure", at, out) && out.blocks_bind;
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
    out.blocks_bind = parse_blocks(object, "weight_block_size", at, out);
  } else if (method == "gptq" || method == "awq") {
    parse_integers(object, method, at, out);
  } else if (method == "gguf") {
    out.method = Quantisation::Method::kGguf;
    out.file_bytes = json_int(object, "bytes", {0, int64_t{1} << 50}, at, kQuantError);
  } else {
    refuse_quantisation(at, "quant_method '" + method + "'");
  }
  return out;
}

}  // namespace specdec::model
