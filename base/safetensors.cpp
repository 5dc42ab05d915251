#include "base/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/gguf/gguf_file.h"
#include "base/gguf/header_reader.h"
#include "base/gguf/model_files.h"
#include "base/json.h"
#include "base/safetensors_writer.h"

namespace specdec {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kPieceBytes = 4 << 20;
constexpr size_t kMaxTensors = 1'000'000, kMaxNameBytes = 1024, kMaxRank = 8;

// Reads the header directly into tensor entries. A hostile header cannot create a large JSON tree, because the parser
// stops at anything but the three known keys, a shape of at most 8 numbers and two offsets.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::map<std::string, TensorEntry>& tensors, std::map<std::string, std::string>& metadata)
      : tensors_(tensors), metadata_(metadata) {}

  std::string error;

  bool start_object(size_t) override {
    if (depth_ == 2 || in_array_) return fail("unexpected object");
    if (depth_++ == 1) seen_ = 0;
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2 && name_ != "__metadata__") return finish_tensor();
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = std::move(text);
      if (name_ == "__metadata__") return metadata_seen_++ == 0 || fail("duplicate __metadata__");
      if (name_.size() > kMaxNameBytes)
        return fail("tensor name of " + std::to_string(name_.size()) + " bytes, the limit is 1024");
      if (std::any_of(name_.begin(), name_.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
        return fail("control character in the tensor name");
      if (tensors_.size() >= kMaxTensors) return fail("more than 1000000 tensors");
      const auto [at, is_new] = tensors_.try_emplace(name_);
      entry_ = &at->second;
      return is_new || fail("duplicate tensor name");
    }
    field_ = std::move(text);
    if (name_ == "__metadata__") return metadata_.try_emplace(field_).second || fail("duplicate key in __metadata__");
    const int bit = field_ == "dtype" ? 1 : field_ == "shape" ? 2 : field_ == "data_offsets" ? 4 : 0;
    if (bit == 0) return fail("unexpected key " + gguf::in_quotes(field_) + ", expected dtype, shape and data_offsets");
    if (seen_ & bit) return fail("duplicate key " + field_);
    seen_ |= bit;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ != 2 || in_array_) return fail("unexpected string");
    if (name_ == "__metadata__") {
      metadata_[field_] = std::move(text);
      return true;
    }
    if (field_ != "dtype") return fail(field_ + ": expected an array, found a string");
    if (dtype_bytes(text) == 0) return fail("unknown dtype " + gguf::in_quotes(text));
    entry_->dtype = std::move(text);
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || name_ == "__metadata__" || field_ == "dtype") return fail("unexpected array");
    in_array_ = true;
    num_offsets_ = 0;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return field_ != "data_offsets" || num_offsets_ == 2 || fail("data_offsets: expected 2 numbers");
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (!in_array_) return fail("unexpected number");
    if (v > static_cast<uint64_t>(INT64_MAX)) return fail(field_ + ": " + std::to_string(v) + " is out of range");
    if (field_ == "shape") {
      if (entry_->shape.size() >= kMaxRank) return fail("more than 8 dimensions");
      entry_->shape.push_back(static_cast<int64_t>(v));
      return true;
    }
    if (num_offsets_ == 2) return fail("data_offsets: expected 2 numbers");
    offsets_[num_offsets_++] = v;
    return true;
  }
  bool number_integer(number_integer_t v) override {
    return fail(field_ + ": expected integers >= 0, found " + std::to_string(v));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return fail(field_ + ": expected integers >= 0, found " + text.substr(0, 40));
  }
  bool null() override { return fail("unexpected null"); }
  bool boolean(bool) override { return fail("unexpected true or false"); }
  bool binary(binary_t&) override { return fail("unexpected binary value"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    name_.clear();
    return fail("not valid JSON (byte " + std::to_string(position + 8) + ")");
  }

 private:
  bool fail(const std::string& text) {
    if (error.empty())
      error = depth_ > 0 && !name_.empty() ? "header: " + gguf::in_quotes(name_) + ": " + text : "header: " + text;
    return false;
  }
  bool finish_tensor() {
    if (seen_ != 7) return fail("needs dtype, shape and data_offsets");
    if (offsets_[0] > offsets_[1]) return fail("data_offsets: the end is before the begin");
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(entry_->dtype));
    for (int64_t d : entry_->shape)
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes))
        return fail("shape: the number of bytes overflows");
    if (bytes != offsets_[1] - offsets_[0])
      return fail("data_offsets span " + std::to_string(offsets_[1] - offsets_[0]) + " bytes, dtype and shape need " +
                  std::to_string(bytes));
    entry_->offset = offsets_[0];
    entry_->bytes = bytes;
    return true;
  }

  std::map<std::string, TensorEntry>& tensors_;
  std::map<std::string, std::string>& metadata_;
  int depth_ = 0, seen_ = 0, metadata_seen_ = 0;
  bool in_array_ = false;
  std::string name_, field_;
  TensorEntry* entry_ = nullptr;
  std::array<uint64_t, 2> offsets_{};
  size_t num_offsets_ = 0;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& text) {
  throw Error(ErrorKind::kModel, path.string() + ": not a valid safetensors file: " + text);
}

void refuse_foreign_magic(const std::filesystem::path& path, std::string_view head) {
  // A safetensors file with a header of 640 bytes (0x280) starts with the same two bytes as a pickle.
  if (head.size() > 8 && head.substr(4, 5) == std::string_view("\0\0\0\0{", 5)) return;
  const auto starts = [&](std::string_view magic) { return head.substr(0, magic.size()) == magic; };
  if ((head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) || starts("PK\x03\x04"))
    refuse(path,
           "a pickle/zip checkpoint: convert to safetensors (pickle runs code when it is loaded, so it is never read)");
  if (starts("GGUF")) refuse(path, "a GGUF file: use the original safetensors checkpoint");
  if (starts("version ")) refuse(path, "a Git LFS pointer: fetch the file itself (git lfs pull)");
}

// Checks that every byte of the data belongs to exactly one tensor.
void check_layout(const std::filesystem::path& path, const std::map<std::string, TensorEntry>& tensors,
                  uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, TensorEntry>*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  uint64_t end = 0;
  for (const auto* item : order) {
    const TensorEntry& e = item->second;
    if (e.offset > data_bytes || e.bytes > data_bytes - e.offset)
      refuse(path, gguf::in_quotes(item->first) + ": ends at data byte " + std::to_string(e.offset + e.bytes) +
                       ", the file has " + std::to_string(data_bytes) + " (truncated?)");
    if (e.offset < end) refuse(path, gguf::in_quotes(item->first) + ": overlaps the tensor before it");
    if (e.offset > end)
      refuse(path, gguf::in_quotes(item->first) + ": hole of " + std::to_string(e.offset - end) + " bytes before it");
    end = e.offset + e.bytes;
  }
  if (end != data_bytes) refuse(path, std::to_string(data_bytes - end) + " trailing bytes after the last tensor");
}

}  // namespace

int dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, int> kBytes = {
      {"F64", 8},  {"F32", 4},     {"F16", 2},     {"BF16", 2},    {"I64", 8}, {"I32", 4},
      {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
      {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};
  const auto it = kBytes.find(dtype);
  return it == kBytes.end() ? 0 : it->second;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path, ErrorKind::kModel) {
  std::array<char, 9> head{};
  const size_t head_bytes = std::min<uint64_t>(file_.size(), head.size());
  file_.read(0, std::as_writable_bytes(std::span(head)).first(head_bytes));
  refuse_foreign_magic(path, std::string_view(head.data(), head_bytes));
  if (head_bytes < 9) refuse(path, "truncated: " + std::to_string(file_.size()) + " bytes");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(head[static_cast<size_t>(i)]);
  if (header_bytes == 0 || header_bytes > kMaxHeaderBytes)
    refuse(path,
           "header length " + std::to_string(header_bytes) + ", expected 1 to " + std::to_string(kMaxHeaderBytes));
  if (header_bytes > file_.size() - 8)
    refuse(path, "header length " + std::to_string(header_bytes) + ", the file has " + std::to_string(file_.size()) +
                     " bytes (truncated?)");
  if (head[8] != '{') refuse(path, "the header does not start with '{'");
  std::string header(header_bytes, '\0');
  file_.read(8, std::as_writable_bytes(std::span(header)));
  if (header.find('\0') != std::string::npos) refuse(path, "NUL byte in the header");
  HeaderReader reader(tensors_, metadata_);
  if (!Json::sax_parse(header, &reader)) refuse(path, reader.error);
  check_layout(path, tensors_, file_.size() - 8 - header_bytes);
  for (auto& [name, entry] : tensors_) entry.offset += 8 + header_bytes;
}

void SafetensorsFile::read(const TensorEntry& entry, std::span<std::byte> out) const {
  if (out.size() != entry.bytes)
    throw Error(ErrorKind::kInternal, file_.path().string() + ": buffer size differs from the tensor's");
  file_.read(entry.offset, out);
}

SafetensorsDirectory::SafetensorsDirectory(const std::filesystem::path& directory) : directory_(directory) {
  const fs::path single = directory / "model.safetensors", index = directory / "model.safetensors.index.json";
  if (fs::exists(single)) {
    shards_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : shards_[0]->tensors()) where_[name] = 0;
    return;
  }
  if (fs::exists(index)) {
    open_index(index);
    return;
  }
  if (const fs::path file = gguf::file_in(directory); !file.empty()) {
    open_gguf(file);
    return;
  }
  std::string found, gguf_file;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(directory, ec)) {
    const std::string extension = e.path().extension().string();
    if (extension == ".gguf") gguf_file = e.path().string();
    if (std::set<std::string>{".bin", ".pt", ".pth", ".ckpt", ".pt2"}.count(extension))
      found = e.path().filename().string();
  }
  throw Error(ErrorKind::kModel,
              directory.string() + ": no model.safetensors and no model.safetensors.index.json" +
                  (!gguf_file.empty() ? ": to use " + gguf_file + ", give the file itself"
                   : found.empty()    ? ""
                                      : ": " + found + " is a pickle/zip checkpoint: convert to safetensors"));
}
SafetensorsDirectory::~SafetensorsDirectory() = default;

void SafetensorsDirectory::open_gguf(const std::filesystem::path& file) {
  gguf_ = std::make_unique<gguf::GgufFile>(file);
  gguf::require_config_of(*gguf_, directory_);
  for (const auto& [stored, tensor] : gguf_->tensors()) {
    const auto place = gguf::place_of(*gguf_, stored);
    if (!place) continue;
    where_[place->name] = tensor.file;
    entries_[place->name] = {tensor.type->name, tensor.shape, tensor.offset, tensor.bytes};
    if (!placed_.try_emplace(place->name, gguf::Placed{&tensor, *place}).second)
      throw Error(ErrorKind::kModel, file.string() + ": two tensors are " + place->name);
  }
}

void SafetensorsDirectory::open_index(const std::filesystem::path& index) {
  const std::string at = index.string();
  const Json root = read_json(index, ErrorKind::kModel);
  std::map<std::string, size_t> number;  // file name → index of the shard
  for (const auto& [name, file] : json_object(root, "weight_map", kMaxTensors, at, ErrorKind::kModel).items()) {
    if (!file.is_string())
      throw Error(ErrorKind::kModel, at + ": weight_map: " + gguf::in_quotes(name) + ": expected a file name");
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard.find('/') != std::string::npos || shard.find("..") != std::string::npos ||
        !shard.ends_with(".safetensors"))
      throw Error(ErrorKind::kModel, at + ": weight_map: " + gguf::in_quotes(shard) +
                                         ": expected the name of a .safetensors file in the same directory");
    if (number.try_emplace(shard, shards_.size()).second)
      shards_.push_back(std::make_unique<SafetensorsFile>(directory_ / shard));
    where_[name] = number[shard];
  }
  size_t listed = 0;
  for (const auto& [shard, i] : number) {
    for (const auto& [name, entry] : shards_[i]->tensors()) {
      const auto it = where_.find(name);
      if (it == where_.end())
        throw Error(ErrorKind::kModel,
                    (directory_ / shard).string() + ": tensor " + gguf::in_quotes(name) + " is not in " + at);
      if (it->second != i)
        throw Error(ErrorKind::kModel, (directory_ / shard).string() + ": tensor " + gguf::in_quotes(name) +
                                           " belongs in another shard by " + at);
    }
    listed += shards_[i]->tensors().size();
  }
  if (listed == where_.size()) return;
  for (const auto& [name, i] : where_)
    if (!shards_[i]->tensors().count(name))
      throw Error(ErrorKind::kModel, shards_[i]->file().path().string() + ": tensor " + gguf::in_quotes(name) +
                                         " is missing, " + at + " lists it");
}

bool has_weights(const std::filesystem::path& directory) {
  return fs::exists(directory / "model.safetensors") || fs::exists(directory / "model.safetensors.index.json") ||
         !gguf::file_in(directory).empty();
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : where_) names.push_back(name);
  return names;
}

const InputFile& SafetensorsDirectory::file_of(const std::string& name) const {
  const auto it = where_.find(name);
  if (it == where_.end())
    throw Error(ErrorKind::kModel, directory_.string() + ": tensor " + gguf::in_quotes(name) + " is missing");
  return gguf_ ? *gguf_->files()[it->second] : shards_[it->second]->file();
}

std::set<std::filesystem::path> SafetensorsDirectory::files() const {
  std::set<std::filesystem::path> out;
  for (const auto& shard : shards_) out.insert(shard->file().path());
  if (gguf_)
    for (const auto& part : gguf_->files()) out.insert(part->path());
  return out;
}

const TensorEntry& SafetensorsDirectory::entry(const std::string& name) const {
  file_of(name);
  return gguf_ ? entries_.at(name) : shards_[where_.at(name)]->tensors().at(name);
}

const gguf::Placed& SafetensorsDirectory::placed(const std::string& name) const {
  file_of(name);
  return placed_.at(name);
}

bool SafetensorsDirectory::equal(const std::string& a, const std::string& b) const {
  const TensorEntry &first = entry(a), &second = entry(b);
  if (first.dtype != second.dtype || first.shape != second.shape) return false;
  const InputFile &of_first = file_of(a), &of_second = file_of(b);
  std::vector<std::byte> one(std::min<uint64_t>(first.bytes, kPieceBytes)), other(one.size());
  for (uint64_t at = 0; at < first.bytes; at += one.size()) {
    const size_t size = std::min<uint64_t>(one.size(), first.bytes - at);
    of_first.read(first.offset + at, std::span(one).first(size));
    of_second.read(second.offset + at, std::span(other).first(size));
    if (!std::equal(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(size), other.begin())) return false;
  }
  return true;
}

void SafetensorsDirectory::read(const std::string& name, std::span<std::byte> out) const {
  const TensorEntry& found = entry(name);
  if (out.size() != found.bytes)
    throw Error(ErrorKind::kInternal, directory_.string() + ": buffer size differs from the tensor's");
  file_of(name).read(found.offset, out);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       std::map<std::string, std::string> metadata) {
  std::vector<TensorShape> shapes;
  std::map<std::string, std::span<const std::byte>> values;
  for (const TensorToWrite& t : tensors) {
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(t.dtype));
    for (const int64_t d : t.shape) bytes *= static_cast<uint64_t>(d);
    if (bytes != t.data.size())
      throw Error(ErrorKind::kInternal,
                  path.string() + ": tensor " + gguf::in_quotes(t.name) + " cannot be written (size)");
    shapes.push_back({t.name, t.dtype, t.shape});
    values[t.name] = t.data;
  }
  SafetensorsWriter writer(path, std::move(shapes), std::move(metadata));
  for (const TensorShape& t : writer.order()) writer.write(values[t.name]);
  writer.finish();
}

}  // namespace specdec
