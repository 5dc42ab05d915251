// Detached signatures as minisign 0.11 makes and checks them (https://jedisct1.github.io/minisign): Ed25519 over the
// bytes ("Ed", legacy) or over their BLAKE2b-512 ("ED"), a trusted comment that is signed too, keys that are encrypted
// with scrypt or not at all.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace specdec {

struct MinisignPublicKey {
  std::array<unsigned char, 8> id{};
  std::array<unsigned char, 32> key{};
  std::string name() const;  // as minisign prints it: 16 hexadecimal digits
};

// Every key of the text: lines of base64, among comments. Throws Error(kData) naming `where` if there is none, or
// another line.
std::vector<MinisignPublicKey> parse_minisign_keys(std::string_view text, const std::string& where);
std::vector<MinisignPublicKey> read_minisign_keys(const std::filesystem::path& file);

struct MinisignSignature {
  std::string signer;  // name of the key
  std::string trusted_comment;
};
// Throws Error(kData) naming `where`: malformed, made by none of these keys, or not of these bytes.
MinisignSignature verify_minisign(std::string_view message, std::string_view signature,
                                  const std::vector<MinisignPublicKey>& keys, const std::string& where);

// The text of a signature file, prehashed. `passphrase` is looked at for an encrypted key only. Throws Error(kConfig)
// for a key file that is none or whose passphrase is another, Error(kUsage) where a comment has a line break.
std::string sign_minisign(std::string_view message, const std::filesystem::path& secret_key,
                          const std::string& passphrase, const std::string& trusted_comment);

}  // namespace specdec
