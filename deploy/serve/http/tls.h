// The certificate and the private key with which the public listener speaks TLS (OpenSSL): version 1.2 or newer,
// without compression and renegotiation. The key's bytes leave this file only towards OpenSSL.
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
  // Reads PEM files: the certificate, followed by those that lead to its root, and its unencrypted private key. Throws
  // Error(kConfig) naming the file if one is missing or malformed or if the key is not the certificate's, Error(kIo) if
  // one may not be read.
  TlsIdentity(std::filesystem::path certificate, std::filesystem::path key);

  // Reads both files again and uses them for new connections. Throws like the constructor, and then keeps the old ones.
  void reload();
  // Starts the server's side of a connection on this socket, which must not block.
  TlsSession session(int socket) const;

 private:
  const std::filesystem::path certificate_, key_;
  Reloadable<ssl_ctx_st> context_;
};

}  // namespace specdec::deploy
