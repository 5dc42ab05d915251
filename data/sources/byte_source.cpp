#include "data/sources/byte_source.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "data/sources/csv_bytes.h"
#include "data/sources/parquet_bytes.h"

namespace specdec::data {

namespace {

constexpr size_t kStoredBlock = 256 << 10;

// Reads the bytes of the source without decompressing them, and computes their SHA-256.
class StoredBytes final : public ByteSource {
 public:
  explicit StoredBytes(const std::string& source) {
    if (source != kStandardInput) file_.emplace(source, ErrorKind::kData);
    head_.resize(4);
    head_.resize(read_more(head_));
  }

  std::string_view head() const { return head_; }  // the first four bytes; read() returns them as well

  size_t read(std::span<char> out) override {
    if (head_given_ < head_.size()) {
      const size_t n = std::min(out.size(), head_.size() - head_given_);
      std::memcpy(out.data(), head_.data() + head_given_, n);
      head_given_ += n;
      return n;
    }
    return read_more(out);
  }
  uint64_t stored_done() const override { return done_; }
  uint64_t stored_size() const override { return file_ ? file_->size() : 0; }
  std::string finish_sha256() override {
    std::vector<char> rest(kStoredBlock);
    while (read_more(rest) > 0) {
    }
    return sha_.hex();
  }

 private:
  // Reads up to out.size() bytes and adds them to the digest.
  size_t read_more(std::span<char> out) {
    size_t n = 0;
    if (file_) {
      n = std::min<uint64_t>(out.size(), file_->size() - done_);
      if (n) file_->read(done_, std::as_writable_bytes(out.first(n)));
    } else {
      n = read_stream(STDIN_FILENO, out, "standard input");
    }
    done_ += n;
    sha_.update(std::string_view(out.data(), n));
    return n;
  }

  std::optional<InputFile> file_;
  std::string head_;
  size_t head_given_ = 0;
  uint64_t done_ = 0;
  Sha256 sha_;
};

// Base of both decompressors: reads the stored bytes in blocks.
class UnpackedBytes : public ByteSource {
 public:
  UnpackedBytes(std::string name, std::unique_ptr<StoredBytes> stored)
      : name_(std::move(name)), stored_(std::move(stored)), block_(kStoredBlock) {}
  uint64_t stored_done() const override { return stored_->stored_done(); }
  uint64_t stored_size() const override { return stored_->stored_size(); }
  std::string finish_sha256() override { return stored_->finish_sha256(); }

 protected:
  std::span<const char> next_block() { return std::span<const char>(block_).first(stored_->read(block_)); }
  template <class Kind = Error>
  [[noreturn]] void damaged(const char* kind, const std::string& what) const {
    throw Kind(ErrorKind::kData, name_ + ": damaged " + kind + " data near byte " +
                                     std::to_string(stored_->stored_done()) + ": " + what +
                                     ": copy the file again, or leave it out while it is being written");
  }

 private:
  std::string name_;
  std::unique_ptr<StoredBytes> stored_;
  std::vector<char> block_;
};

class GzipBytes final : public UnpackedBytes {
 public:
  GzipBytes(const std::string& name, std::unique_ptr<StoredBytes> stored) : UnpackedBytes(name, std::move(stored)) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw Error(ErrorKind::kInternal, "zlib: no memory");
  }
  ~GzipBytes() override { inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      if (stream_.avail_in == 0) {
        const auto block = next_block();
        if (block.empty() && !between_members_) damaged<CutSource>("gzip", "it ends in the middle");
        if (block.empty()) return 0;
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
        stream_.avail_in = static_cast<uInt>(block.size());
      }
      if (between_members_ && skip_padding()) continue;
      between_members_ = false;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        inflateReset(&stream_);
        between_members_ = true;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        damaged("gzip", stream_.msg ? stream_.msg : "zlib refuses it");
      }
    }
    return out.size() - stream_.avail_out;
  }

 private:
  // Skips the zero bytes that tapes and disk images append after a gzip member. Returns whether only zero bytes were
  // left in the block.
  bool skip_padding() {
    for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
    return stream_.avail_in == 0;
  }

  z_stream stream_{};
  bool between_members_ = false;
};

class ZstdBytes final : public UnpackedBytes {
 public:
  ZstdBytes(const std::string& name, std::unique_ptr<StoredBytes> stored)
      : UnpackedBytes(name, std::move(stored)), stream_(ZSTD_createDStream()) {
    if (!stream_) throw Error(ErrorKind::kInternal, "zstd: no memory");
  }
  ~ZstdBytes() override { ZSTD_freeDStream(stream_); }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      if (from_.pos == from_.size && !pending_) {
        const auto block = next_block();
        if (block.empty() && rest_ != 0) damaged<CutSource>("zstd", "it ends in the middle");
        if (block.empty()) return 0;
        from_ = {block.data(), block.size(), 0};
      }
      rest_ = ZSTD_decompressStream(stream_, &to, &from_);
      if (ZSTD_isError(rest_)) damaged("zstd", ZSTD_getErrorName(rest_));
      pending_ = to.pos == to.size;  // the output is full: zstd may give more without new input
    }
    return to.pos;
  }

 private:
  ZSTD_DStream* stream_;
  ZSTD_inBuffer from_{nullptr, 0, 0};
  size_t rest_ = 0;  // last result of ZSTD_decompressStream; 0 = a frame has just ended
  bool pending_ = false;
};

// Returns whether a file begins with a zstd frame, or with a skippable frame, as pzstd writes it.
bool is_zstd(std::string_view head) {
  if (head.starts_with("\x28\xB5\x2F\xFD")) return true;
  return head.size() == 4 && (head[0] & 0xF0) == 0x50 && head.substr(1) == "\x2A\x4D\x18";
}

}  // namespace

std::string traffic_extension(const std::string& source) {
  std::filesystem::path path(source);
  while (path.extension() == ".gz" || path.extension() == ".zst") path = path.stem();
  return path.extension().string();
}

std::unique_ptr<ByteSource> open_bytes(const std::string& source) {
  auto stored = std::make_unique<StoredBytes>(source);
  const std::string name = source == kStandardInput ? "standard input" : source;
  const bool parquet = stored->head().starts_with("PAR1") || stored->head().starts_with("PARE");
  if (parquet && source == kStandardInput)
    throw Error(ErrorKind::kData, name + ": Parquet, which is read from its end: give the file's name");
  if (!parquet && traffic_extension(source) == ".parquet")
    throw Error(ErrorKind::kData,
                name + ": named .parquet, expected PAR1 as its first bytes: copy the file again, or rename it");
  if (parquet) return parquet_bytes(source, std::move(stored));
  std::unique_ptr<ByteSource> text;
  if (stored->head().starts_with("\x1F\x8B"))
    text = std::make_unique<GzipBytes>(name, std::move(stored));
  else if (is_zstd(stored->head()))
    text = std::make_unique<ZstdBytes>(name, std::move(stored));
  else
    text = std::move(stored);
  const std::string extension = traffic_extension(source);
  if (extension == ".csv") return csv_bytes(name, std::move(text), '\0');
  if (extension == ".tsv") return csv_bytes(name, std::move(text), '\t');
  return text;
}

}  // namespace specdec::data
