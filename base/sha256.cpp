#include "base/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <vector>

#include "base/file.h"

namespace specdec {

namespace {
using Digest = std::array<char, EVP_MAX_MD_SIZE>;
unsigned char* start_of(Digest& digest) { return reinterpret_cast<unsigned char*>(digest.data()); }
}  // namespace

std::string to_hex(std::string_view bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorKind::kInternal, "SHA-256 could not be started (OpenSSL)");
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1)
    throw Error(ErrorKind::kInternal, "SHA-256 failed (OpenSSL)");
}

void Sha256::update(std::string_view bytes) { update(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

std::string Sha256::hex() {
  Digest digest;
  unsigned length = 0;
  if (EVP_DigestFinal_ex(state_->context, start_of(digest), &length) != 1)
    throw Error(ErrorKind::kInternal, "SHA-256 failed (OpenSSL)");
  return to_hex({digest.data(), length});
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  Digest digest;
  unsigned length = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), start_of(digest), &length))
    throw Error(ErrorKind::kInternal, "HMAC-SHA-256 failed (OpenSSL)");
  return {digest.data(), length};
}

std::string sha256_file(const std::filesystem::path& path) {
  const InputFile file(path, ErrorKind::kData);
  Sha256 hash;
  std::vector<std::byte> block(std::min<uint64_t>(file.size(), 1u << 20));
  for (uint64_t at = 0; at < file.size();) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), file.size() - at));
    file.read(at, part);
    hash.update(part);
    at += part.size();
  }
  return hash.hex();
}

std::string sha1_hex(std::string_view bytes) {
  Digest digest;
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), start_of(digest), &length, EVP_sha1(), nullptr) != 1)
    throw Error(ErrorKind::kInternal, "SHA-1 failed (OpenSSL)");
  return to_hex({digest.data(), length});
}

std::string git_blob_id(std::string_view bytes) {
  std::string object = "blob " + std::to_string(bytes.size());
  object += '\0';
  object += bytes;
  return sha1_hex(object);
}

}  // namespace specdec
