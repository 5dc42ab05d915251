#include "base/minisign.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/base64.h"
#include "base/file.h"

namespace specdec {

namespace {

constexpr size_t kSignatureBytes = 64, kIdBytes = 8, kKeyBytes = 32;
constexpr uint64_t kMaxScryptBytes = uint64_t{2} << 30;  // limit of scrypt's memory; minisign's own keys need 1 GiB
constexpr uint64_t kMaxScryptOperations = uint64_t{1} << 27;  // limit; minisign's own keys need 2^25 (a second or two)

using EvpKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

// Decodes exactly `size` bytes, and accepts only the encoding that base64() writes; returns "" for anything else.
std::string decode(std::string_view text, size_t size) {
  if (text.size() != (size + 2) / 3 * 4) return "";
  std::string out(text.size() / 4 * 3, '\0');
  if (EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(text), static_cast<int>(text.size())) !=
      static_cast<int>(out.size()))
    return "";
  out.resize(size);
  return base64(out) == text ? out : "";
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

std::string blake2b(std::string_view bytes) {
  std::string digest(64, '\0');
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_blake2b512(),
                 nullptr) != 1 ||
      size != digest.size())
    throw Error(ErrorKind::kInternal, "OpenSSL: no BLAKE2b-512");
  return digest;
}

bool verify(const MinisignPublicKey& key, std::string_view message, std::string_view signature) {
  const EvpKey pkey(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.key.data(), key.key.size()),
                    EVP_PKEY_free);
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return pkey && context && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, pkey.get()) == 1 &&
         EVP_DigestVerify(context.get(), bytes_of(signature), signature.size(), bytes_of(message), message.size()) == 1;
}

std::string sign(EVP_PKEY* key, std::string_view message) {
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes_of(message),
                     message.size()) != 1)
    throw Error(ErrorKind::kInternal, "OpenSSL: cannot sign with Ed25519");
  return signature;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

struct ScryptLimits {
  uint64_t operations, memory;  // the two limits of scrypt; memory in bytes
};

// Returns the key stream of crypto_pwhash_scryptsalsa208sha256. As in libsodium, N and p follow from the two limits,
// and r is 8.
std::string scrypt_stream(const std::string& passphrase, std::string_view salt, const ScryptLimits& limits, size_t size,
                          const std::string& where) {
  const uint64_t memory = limits.memory;
  if (memory > kMaxScryptBytes)
    throw Error(ErrorKind::kConfig,
                where + ": its encryption asks for " + std::to_string(memory >> 20) + " MiB of memory");
  if (limits.operations > kMaxScryptOperations)
    throw Error(ErrorKind::kConfig, where + ": its encryption asks for too much work (" +
                                        std::to_string(limits.operations) + " operations)");
  const uint64_t operations = std::max<uint64_t>(limits.operations, 32768);
  const bool cheap = operations < memory / 32;
  const uint64_t most = cheap ? operations / 32 : memory / 1024;
  int log2 = 1;
  while (log2 < 62 && (uint64_t{1} << log2) <= most / 2) ++log2;
  const uint64_t p = cheap ? 1 : std::min<uint64_t>(operations / 4 >> log2, 0x3fffffff) / 8;
  std::string stream(size, '\0');
  if (EVP_PBE_scrypt(passphrase.data(), passphrase.size(), bytes_of(salt), salt.size(), uint64_t{1} << log2, 8, p,
                     kMaxScryptBytes + (64u << 20), reinterpret_cast<unsigned char*>(stream.data()),
                     stream.size()) != 1)
    throw Error(ErrorKind::kConfig, where + ": cannot derive the key of its encryption (not enough memory?)");
  return stream;
}

// A string whose bytes are overwritten when it is destroyed.
struct Secret {
  std::string bytes;
  ~Secret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

// Reads and decrypts a secret key. The second line of the file is base64 of these bytes: "Ed", "Sc" (encrypted with
// scrypt) or 0 0 (not encrypted), "B2", 32 bytes of salt, two limits of 8 bytes, then the part that may be encrypted.
// That part is an id of 8 bytes, and seed, public key and checksum of 32 bytes each.
Secret read_secret_key(const fs::path& file, const std::string& passphrase) {
  const Secret text{read_file(file, 4096, ErrorKind::kConfig)};
  const std::vector<std::string> lines = lines_of(text.bytes);
  const Secret blob{lines.size() < 2 ? "" : decode(lines[1], 158)};
  const std::string_view b = blob.bytes;
  if (b.empty() || b.substr(0, 2) != "Ed" || b.substr(4, 2) != "B2")
    throw Error(ErrorKind::kConfig, file.string() + ": not a secret key of minisign");
  Secret key{std::string(b.substr(54))};
  const std::string_view kdf = b.substr(2, 2);
  if (kdf == "Sc") {
    if (passphrase.empty())
      throw Error(ErrorKind::kConfig,
                  file.string() + ": is encrypted: give its passphrase (--passphrase-file, or MINISIGN_PASSPHRASE)");
    const ScryptLimits limits{.operations = little_endian(b.substr(38, 8)), .memory = little_endian(b.substr(46, 8))};
    const Secret stream{scrypt_stream(passphrase, b.substr(6, 32), limits, key.bytes.size(), file.string())};
    for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<char>(key.bytes[i] ^ stream.bytes[i]);
  } else if (kdf != std::string_view("\0\0", 2)) {
    throw Error(ErrorKind::kConfig, file.string() + ": encrypted in a way that is not known");
  }
  return key;
}

}  // namespace

std::string MinisignPublicKey::name() const {
  std::string text;
  for (size_t i = id.size(); i-- > 0;) {
    const char* const digits = "0123456789ABCDEF";
    text += {digits[id[i] >> 4], digits[id[i] & 15]};
  }
  return text;
}

std::vector<MinisignPublicKey> parse_minisign_keys(std::string_view text, const std::string& where) {
  std::vector<MinisignPublicKey> keys;
  for (const std::string& line : lines_of(text)) {
    if (line.empty() || line[0] == '#' || line.rfind("untrusted comment:", 0) == 0) continue;
    const std::string blob = decode(line, 2 + kIdBytes + kKeyBytes);
    if (blob.empty() || blob.substr(0, 2) != "Ed")
      throw Error(ErrorKind::kData, where + ": expected public keys of minisign, found '" + line.substr(0, 60) + "'");
    MinisignPublicKey key;
    std::memcpy(key.id.data(), blob.data() + 2, kIdBytes);
    std::memcpy(key.key.data(), blob.data() + 2 + kIdBytes, kKeyBytes);
    keys.push_back(key);
  }
  if (keys.empty()) throw Error(ErrorKind::kData, where + ": no public key of minisign in it");
  return keys;
}

std::vector<MinisignPublicKey> read_minisign_keys(const fs::path& file) {
  return parse_minisign_keys(read_file(file, 1u << 20), file.string());
}

MinisignSignature verify_minisign(std::string_view message, std::string_view signature,
                                  const std::vector<MinisignPublicKey>& keys, const std::string& where) {
  const std::string kTrusted = "trusted comment: ";
  const std::vector<std::string> lines = lines_of(signature);
  const std::string blob = lines.size() < 4 ? "" : decode(lines[1], 2 + kIdBytes + kSignatureBytes),
                    all = lines.size() < 4 ? "" : decode(lines[3], kSignatureBytes);
  if (blob.empty() || all.empty() || lines[2].rfind(kTrusted, 0) != 0 ||
      (blob.substr(0, 2) != "Ed" && blob.substr(0, 2) != "ED"))
    throw Error(ErrorKind::kData, where + ": not a signature of minisign");
  MinisignPublicKey signer;
  std::memcpy(signer.id.data(), blob.data() + 2, kIdBytes);
  const auto key =
      std::find_if(keys.begin(), keys.end(), [&](const MinisignPublicKey& k) { return k.id == signer.id; });
  if (key == keys.end())
    throw Error(ErrorKind::kData,
                where + ": signed with key " + signer.name() + ", which is not among the trusted ones");
  const std::string made = blob.substr(2 + kIdBytes);
  if (!verify(*key, blob[1] == 'D' ? blake2b(message) : std::string(message), made))
    throw Error(ErrorKind::kData, where + ": the signature of key " + signer.name() +
                                      " is not one of these bytes: they were changed after signing");
  MinisignSignature out{signer.name(), lines[2].substr(kTrusted.size())};
  if (!verify(*key, made + out.trusted_comment, all))
    throw Error(ErrorKind::kData, where + ": the trusted comment was changed after signing");
  return out;
}

std::string sign_minisign(std::string_view message, const fs::path& secret_key, const std::string& passphrase,
                          const std::string& trusted_comment) {
  if (trusted_comment.find_first_of("\r\n") != std::string::npos)
    throw Error(ErrorKind::kUsage, "the trusted comment must be one line");
  const Secret secret = read_secret_key(secret_key, passphrase);
  const std::string id = secret.bytes.substr(0, kIdBytes);
  const EvpKey key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr,
                                                bytes_of(std::string_view(secret.bytes).substr(kIdBytes)), kKeyBytes),
                   EVP_PKEY_free);
  std::string derived(kKeyBytes, '\0');
  size_t size = derived.size();
  // The seed must yield the public key stored beside it. Otherwise the passphrase was wrong, or the key is damaged.
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), reinterpret_cast<unsigned char*>(derived.data()), &size) != 1 ||
      derived != std::string_view(secret.bytes).substr(kIdBytes + kKeyBytes, kKeyBytes))
    throw Error(ErrorKind::kConfig, secret_key.string() + ": the passphrase is another, or the key is damaged");
  const std::string made = sign(key.get(), blake2b(message));
  return "untrusted comment: signature from specdec package\n" + base64("ED" + id + made) +
         "\ntrusted comment: " + trusted_comment + "\n" + base64(sign(key.get(), made + trusted_comment)) + "\n";
}

}  // namespace specdec
