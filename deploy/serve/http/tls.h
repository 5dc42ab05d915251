// Certificate and private key for TLS on the public listener (OpenSSL): TLS 1.2 or newer, without compression and
// renegotiation. The key's bytes are passed to OpenSSL only.
#pragma once

#include <filesystem>
#include <memory>

#include "deploy/serve/http/reloadable.h"

struct ssl_st;
struct ssl_ctx_st;

namespace specdec::deploy {

struct TlsSessionDeleter {
  void operator()(ssl_st* session) const;
};
using TlsSession = std::unique_ptr<ssl_st, TlsSessionDeleter>;

class TlsIdentity {
 public:
  // Reads PEM files: the certificate, followed by its chain of intermediate certificates, and its unencrypted private
  // key. Throws Error(kConfig) if a file is missing or malformed, or if the key does not belong to the certificate.
  // Throws Error(kIo) if a file may not be read. The message names the file.
  TlsIdentity(std::filesystem::path certificate, std::filesystem::path key);

  // Reads both files again and uses them for new connections. Throws like the constructor; the old certificate and key
  // then stay in use.
  void reload();
  // Creates the server's side of a TLS connection on this socket, which must be non-blocking.
  TlsSession session(int socket) const;

 private:
  const std::filesystem::path certificate_, key_;
  Reloadable<ssl_ctx_st> context_;
};

}  // namespace specdec::deploy
