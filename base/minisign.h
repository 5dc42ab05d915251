// Makes and verifies detached signatures as minisign 0.11 does (https://jedisct1.github.io/minisign): Ed25519 over the
// bytes ("Ed", legacy) or over their BLAKE2b-512 ("ED"), with a trusted comment that is signed too. Secret keys may be
// encrypted with scrypt.
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

// Returns every key in the text. Each line must be a key in base64, a comment or empty. Throws Error(kData) naming
// `where` if any other line is found, or no key.
std::vector<MinisignPublicKey> parse_minisign_keys(std::string_view text, const std::string& where);
std::vector<MinisignPublicKey> read_minisign_keys(const std::filesystem::path& file);

struct MinisignSignature {
  std::string signer;  // name of the key that signed
  std::string trusted_comment;
};
// Verifies `signature`, the text of a signature file. Throws Error(kData) naming `where` if it is malformed, was made
// by none of `keys`, or does not match `message` or the trusted comment.
MinisignSignature verify_minisign(std::string_view message, std::string_view signature,
                                  const std::vector<MinisignPublicKey>& keys, const std::string& where);

// Returns the text of a signature file for the BLAKE2b-512 digest of `message`. `passphrase` is only used for an
// encrypted key. Throws Error(kConfig) if the file is not a key or the passphrase is wrong, Error(kUsage) for a comment
// with a line break.
std::string sign_minisign(std::string_view message, const std::filesystem::path& secret_key,
                          const std::string& passphrase, const std::string& trusted_comment);

}  // namespace specdec
