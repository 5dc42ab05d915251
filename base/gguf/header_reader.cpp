#include "base/gguf/header_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace specdec::gguf {

static_assert(std::endian::native == std::endian::little, "the reader copies little-endian numbers");

namespace {

constexpr size_t kWindowBytes = 256 << 10;
constexpr uint64_t kMostMetadata = 64 << 10, kMostElements = 1 << 22, kMostStringBytes = 64 << 20,
                   kMostNameBytes = 1024;
constexpr uint32_t kMostDimensions = 4;
constexpr uint64_t kLeastAlignment = 8, kMostAlignment = 1 << 20, kUsualAlignment = 32;

// The numbers of metadata's types (gguf.md, enum gguf_metadata_value_type).
enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
// The bytes that a value of each type takes at least: a string has a length of 8 bytes.
constexpr std::array<uint64_t, 13> kLeastBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// Names of ggml's types that specdec does not read, by their numbers (enum ggml_type); the numbers 4, 5, 31 to 33 and
// 36 to 38 had types that ggml has removed.
std::string other_type(uint32_t id) {
  static const std::map<uint32_t, const char*> kNames = {
      {4, "Q4_2"},     {5, "Q4_3"},        {9, "Q8_1"},        {10, "Q2_K"},       {11, "Q3_K"},     {15, "Q8_K"},
      {16, "IQ2_XXS"}, {17, "IQ2_XS"},     {18, "IQ3_XXS"},    {19, "IQ1_S"},      {20, "IQ4_NL"},   {21, "IQ3_S"},
      {22, "IQ2_S"},   {23, "IQ4_XS"},     {24, "I8"},         {25, "I16"},        {26, "I32"},      {27, "I64"},
      {28, "F64"},     {29, "IQ1_M"},      {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"}, {34, "TQ1_0"},
      {35, "TQ2_0"},   {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},    {40, "NVFP4"},
      {41, "Q1_0"}};
  const auto at = kNames.find(id);
  return at == kNames.end() ? "number " + std::to_string(id) : at->second;
}

bool has_control_character(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Reads the header's bytes once, front to back.
class HeaderBytes {
 public:
  HeaderBytes(const InputFile& file, uint64_t most_bytes, Sha256& digest)
      : file_(file), most_bytes_(most_bytes), digest_(digest) {}

  uint64_t position() const { return begin_ + at_; }
  // Refuses the file unless `count` parts of at least `each` bytes can follow.
  void expect(uint64_t count, uint64_t each, const std::string& what) const {
    if (count > (file_.size() - position()) / each)
      refuse_file(file_, what + " at byte " + std::to_string(position()) +
                             " goes beyond the end of the file, which has " + std::to_string(file_.size()) +
                             " bytes (truncated?)");
    if (count > (most_bytes_ - position()) / each) refuse_file(file_, "the headers take more than 512 MiB");
  }
  void read(std::span<std::byte> out, const std::string& what) {
    expect(out.size(), 1, what);
    while (!out.empty()) {
      if (at_ == window_.size()) refill();
      const size_t n = std::min(out.size(), window_.size() - at_);
      std::memcpy(out.data(), window_.data() + at_, n);
      at_ += n;
      out = out.subspan(n);
    }
  }
  template <class T>
  T number(const std::string& what) {
    T value;
    read(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }
  std::string string(uint64_t most, const std::string& what) {
    const auto length = number<uint64_t>(what);
    if (length > most)
      refuse_file(file_,
                  what + " has a length of " + std::to_string(length) + " bytes, the limit is " + std::to_string(most));
    expect(length, 1, what);
    std::string text(length, '\0');
    read(std::as_writable_bytes(std::span(text)), what);
    return text;
  }
  std::string name(const std::string& what) {
    std::string text = string(kMostNameBytes, what);
    if (text.empty()) refuse_file(file_, what + " is empty");
    if (has_control_character(text)) refuse_file(file_, what + ": control character in " + in_quotes(text));
    return text;
  }
  // Reads up to `position`, at most to the end of the file, and completes the digest.
  void finish(uint64_t position) {
    std::array<std::byte, 256> skipped;
    for (uint64_t left = std::min(position, file_.size()) - this->position(); left > 0;) {
      const uint64_t n = std::min<uint64_t>(left, skipped.size());
      read(std::span(skipped).first(n), "the padding");
      left -= n;
    }
    digest_.update(std::span<const std::byte>(window_).first(at_));
  }

 private:
  void refill() {
    digest_.update(std::span<const std::byte>(window_));
    begin_ += window_.size();
    window_.resize(std::min<uint64_t>(kWindowBytes, file_.size() - begin_));
    file_.read(begin_, window_);
    at_ = 0;
  }

  const InputFile& file_;
  const uint64_t most_bytes_;
  Sha256& digest_;
  std::vector<std::byte> window_;
  uint64_t begin_ = 0;  // position of the window in the file
  size_t at_ = 0;       // position in the window
};

class HeaderReader {
 public:
  HeaderReader(const InputFile& file, HeaderAllowance& allowance, Sha256& digest)
      : file_(file), allowance_(allowance), bytes_(file, allowance.bytes, digest) {}

  Header read() {
    read_start();
    for (uint64_t i = 0; i < num_metadata_; ++i) read_metadata();
    const uint64_t alignment = read_alignment();
    for (uint64_t i = 0; i < num_tensors_; ++i) read_tensor(alignment);
    const uint64_t data = (bytes_.position() + alignment - 1) / alignment * alignment;
    bytes_.finish(data);
    allowance_.bytes -= std::min(allowance_.bytes, bytes_.position());
    allowance_.tensors -= num_tensors_;
    check_layout(data, alignment);
    return std::move(header_);
  }

 private:
  void read_start() {
    std::string magic(std::min<uint64_t>(file_.size(), 4), '\0');
    bytes_.read(std::as_writable_bytes(std::span(magic)), "the magic");
    if (magic != "GGUF")
      refuse_file(file_, "it begins with " + in_quotes(magic) + ", expected 'GGUF'" +
                             (magic == "vers"   ? " (a Git LFS pointer: fetch the file with git lfs pull)"
                              : magic == "<!DO" ? " (a web page: the download failed)"
                                                : ""));
    const auto version = bytes_.number<uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0)
      refuse_file(file_, "it is big-endian, specdec reads little-endian files (convert it with gguf-convert-endian)");
    if (version != 2 && version != 3)
      refuse_file(file_, "version " + std::to_string(version) + ", expected 2 or 3 (convert the model again)");
    num_tensors_ = bytes_.number<uint64_t>("the number of tensors");
    num_metadata_ = bytes_.number<uint64_t>("the number of metadata values");
    if (num_tensors_ > allowance_.tensors)
      refuse_file(file_, std::to_string(num_tensors_) + " tensors, the limit is 1048576 in all files of a model");
    if (num_metadata_ > kMostMetadata)
      refuse_file(file_,
                  std::to_string(num_metadata_) + " metadata values, the limit is " + std::to_string(kMostMetadata));
    bytes_.expect(num_metadata_, 14, "the metadata");        // a name of one byte, a type and a value of one byte
    bytes_.expect(num_tensors_, 25, "the list of tensors");  // a name of one byte, no dimensions, a type and an offset
  }

  void read_metadata() {
    std::string key = bytes_.name("the name of a metadata value");
    if (header_.metadata.count(key)) refuse_file(file_, "two metadata values have the name " + in_quotes(key));
    what_ = "metadata " + in_quotes(key);
    const auto type = bytes_.number<uint32_t>(what_);
    header_.metadata.emplace(std::move(key), type == kArray ? read_array() : read_value(type));
  }

  template <class T>
  T element() {
    if constexpr (std::is_same_v<T, std::string>) {
      return bytes_.string(kMostStringBytes, what_);
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto value = bytes_.number<uint8_t>(what_);
      if (value > 1) refuse_file(file_, what_ + ": a bool is " + std::to_string(value) + ", expected 0 or 1");
      return value == 1;
    } else {
      return bytes_.number<T>(what_);
    }
  }

  Value read_value(uint32_t type) {
    switch (type) {
      case kU8:
        return uint64_t{element<uint8_t>()};
      case kU16:
        return uint64_t{element<uint16_t>()};
      case kU32:
        return uint64_t{element<uint32_t>()};
      case kU64:
        return element<uint64_t>();
      case kI8:
        return int64_t{element<int8_t>()};
      case kI16:
        return int64_t{element<int16_t>()};
      case kI32:
        return int64_t{element<int32_t>()};
      case kI64:
        return element<int64_t>();
      case kF32:
        return double{element<float>()};
      case kF64:
        return element<double>();
      case kBool:
        return element<bool>();
      case kString:
        return element<std::string>();
      default:
        refuse_file(file_, what_ + ": type " + std::to_string(type) + ", expected 0 to 12");
    }
  }

  template <class T, class Stored>
  Value elements(uint64_t count) {
    std::vector<Stored> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) values.push_back(element<T>());
    return values;
  }

  Value read_array() {
    const auto type = bytes_.number<uint32_t>(what_);
    const auto count = bytes_.number<uint64_t>(what_);
    if (type == kArray) refuse_file(file_, what_ + ": an array of arrays, which specdec does not read");
    if (type >= kLeastBytes.size())
      refuse_file(file_, what_ + ": elements of type " + std::to_string(type) + ", expected 0 to 12");
    if (count > kMostElements)
      refuse_file(file_,
                  what_ + ": " + std::to_string(count) + " elements, the limit is " + std::to_string(kMostElements));
    if (count > allowance_.elements) refuse_file(file_, what_ + ": the arrays have more than 16777216 elements in all");
    allowance_.elements -= count;
    bytes_.expect(count, kLeastBytes[type], what_);
    switch (type) {
      case kU8:
        return elements<uint8_t, uint64_t>(count);
      case kU16:
        return elements<uint16_t, uint64_t>(count);
      case kU32:
        return elements<uint32_t, uint64_t>(count);
      case kU64:
        return elements<uint64_t, uint64_t>(count);
      case kI8:
        return elements<int8_t, int64_t>(count);
      case kI16:
        return elements<int16_t, int64_t>(count);
      case kI32:
        return elements<int32_t, int64_t>(count);
      case kI64:
        return elements<int64_t, int64_t>(count);
      case kF32:
        return elements<float, double>(count);
      case kF64:
        return elements<double, double>(count);
      case kBool:
        return elements<bool, bool>(count);
      default:
        return elements<std::string, std::string>(count);
    }
  }

  // ggml accepts every power of two; gguf.md asks for a multiple of 8.
  uint64_t read_alignment() const {
    const auto at = header_.metadata.find("general.alignment");
    if (at == header_.metadata.end()) return kUsualAlignment;
    const auto* value = std::get_if<uint64_t>(&at->second);
    if (!value || !std::has_single_bit(*value) || *value < kLeastAlignment || *value > kMostAlignment)
      refuse_file(file_, "general.alignment is " + (value ? std::to_string(*value) : "not an unsigned integer") +
                             ", expected a power of two from 8 to 1048576");
    return *value;
  }

  void read_tensor(uint64_t alignment) {
    std::string name = bytes_.name("the name of a tensor");
    what_ = "tensor " + in_quotes(name);
    Tensor tensor{};
    const auto rank = bytes_.number<uint32_t>(what_);
    if (rank == 0 || rank > kMostDimensions)
      refuse_file(file_, what_ + ": " + std::to_string(rank) + " dimensions, expected 1 to 4");
    for (uint32_t i = 0; i < rank; ++i) {
      tensor.shape.push_back(bytes_.number<int64_t>(what_));
      if (tensor.shape.back() < 1)
        refuse_file(file_, what_ + ": a dimension is " + std::to_string(static_cast<uint64_t>(tensor.shape.back())) +
                               ", expected 1 to 2^63 - 1");
    }
    const auto type = bytes_.number<uint32_t>(what_);
    tensor.type = find_type(type);
    if (!tensor.type)
      throw Error(ErrorKind::kModel, file_.path().string() + ": " + what_ + " is stored as " + other_type(type) +
                                         ", expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K: "
                                         "use a file of the model in one of these types");
    const int64_t row = rank == 0 ? 1 : tensor.shape[0];
    if (row % tensor.type->block_values != 0)
      refuse_file(file_, what_ + ": rows of " + std::to_string(row) + " values, expected a multiple of " +
                             std::to_string(tensor.type->block_values) + " for " + tensor.type->name);
    int64_t bytes = row / tensor.type->block_values;
    bool too_large = __builtin_mul_overflow(bytes, tensor.type->block_bytes, &bytes);
    int64_t values = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      too_large |= i > 0 && __builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
      too_large |= __builtin_mul_overflow(values, tensor.shape[i], &values);
    }
    if (too_large) refuse_file(file_, what_ + ": the product of its dimensions overflows");
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    tensor.bytes = static_cast<uint64_t>(bytes);
    tensor.offset = bytes_.number<uint64_t>(what_);
    if (tensor.offset % alignment != 0)
      refuse_file(file_, what_ + ": its offset " + std::to_string(tensor.offset) +
                             " is not a multiple of the alignment " + std::to_string(alignment));
    header_.tensors.emplace_back(std::move(name), std::move(tensor));
  }

  // Checks that the tensors' data follow each other, with no more between them than the padding to the next multiple of
  // the alignment (llama.cpp accepts nothing else), and makes the offsets absolute.
  void check_layout(uint64_t data, uint64_t alignment) {
    if (header_.tensors.empty()) data = std::min(data, file_.size());
    if (data > file_.size()) refuse_file(file_, "it ends before the tensors' data (truncated?)");
    const uint64_t data_bytes = file_.size() - data;
    std::sort(header_.tensors.begin(), header_.tensors.end(),
              [](const auto& a, const auto& b) { return a.second.offset < b.second.offset; });
    uint64_t end = 0;
    for (auto& [name, tensor] : header_.tensors) {
      if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset)
        refuse_file(file_, "tensor " + in_quotes(name) + ": " + std::to_string(tensor.bytes) + " bytes at byte " +
                               std::to_string(tensor.offset) + " of the data, which have " +
                               std::to_string(data_bytes) + " (truncated?)");
      if (tensor.offset < end) refuse_file(file_, "tensor " + in_quotes(name) + ": overlaps the tensor before it");
      if (tensor.offset - end >= alignment)
        refuse_file(file_, "tensor " + in_quotes(name) + ": hole of " + std::to_string(tensor.offset - end) +
                               " bytes before it");
      end = tensor.offset + tensor.bytes;
      tensor.offset += data;
    }
    if (data_bytes - end >= alignment)
      refuse_file(file_, std::to_string(data_bytes - end) +
                             " bytes after the last tensor, expected padding to a multiple of " +
                             std::to_string(alignment));
  }

  const InputFile& file_;
  HeaderAllowance& allowance_;
  HeaderBytes bytes_;
  uint64_t num_tensors_ = 0, num_metadata_ = 0;
  std::string what_;  // the value or tensor that is being read, for error messages
  Header header_;
};

}  // namespace

Header read_header(const InputFile& file, HeaderAllowance& allowance, Sha256& digest) {
  return HeaderReader(file, allowance, digest).read();
}

std::string in_quotes(const std::string& name) {
  std::string text = "'";
  for (char c : name.substr(0, 80)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text + (name.size() > 80 ? "…'" : "'");
}

void refuse_file(const InputFile& file, const std::string& text) {
  throw Error(ErrorKind::kModel, file.path().string() + ": not a valid GGUF file: " + text);
}

}  // namespace specdec::gguf
