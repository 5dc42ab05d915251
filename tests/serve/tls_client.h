// A blocking TLS client, and self-signed certificates for its server.
#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/base/scratch.h"
#include "tests/serve/client.h"

namespace specdec::deploy {

struct IdentityFiles {
  std::filesystem::path certificate, key;
};

inline std::string pem_of(const std::function<void(BIO*)>& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), BIO_free);
  write(memory.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &bytes);
  return {bytes, static_cast<size_t>(size)};
}

// Writes a certificate with this common name and its private key, which is encrypted if a passphrase is given.
inline IdentityFiles write_identity(const std::filesystem::path& folder, const std::string& name,
                                    const std::string& passphrase = "") {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24 * 3600);
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), subject);
  X509_set_pubkey(certificate.get(), key.get());
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const IdentityFiles files{folder / (name + ".cert"), folder / (name + ".key")};
  testing::put(files.certificate, pem_of([&](BIO* out) { PEM_write_bio_X509(out, certificate.get()); }));
  testing::put(files.key, pem_of([&](BIO* out) {
                 PEM_write_bio_PKCS8PrivateKey(out, key.get(), passphrase.empty() ? nullptr : EVP_aes_128_cbc(),
                                               passphrase.c_str(), static_cast<int>(passphrase.size()), nullptr,
                                               nullptr);
               }));
  return files;
}

class TlsClient final : public Client {
 public:
  // Connects and performs the handshake. `newest` is the highest TLS version that the client offers.
  explicit TlsClient(int port, int newest = TLS1_3_VERSION)
      : Client(port), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    std::signal(SIGPIPE, SIG_IGN);                  // OpenSSL writes without MSG_NOSIGNAL
    SSL_CTX_set_security_level(context_.get(), 0);  // otherwise OpenSSL does not offer TLS 1.1
    SSL_CTX_set_min_proto_version(context_.get(), 0);
    SSL_CTX_set_max_proto_version(context_.get(), newest);
    session_.reset(SSL_new(context_.get()));
    SSL_set_fd(session_.get(), fd());
    secure_ = SSL_connect(session_.get()) == 1;
  }

  bool secure() const { return secure_; }  // true: the handshake succeeded
  SSL* session() { return session_.get(); }
  // Returns the common name in the certificate that the server sent.
  std::string peer() const {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(session_.get()), X509_free);
    char name[64] = "";
    if (certificate)
      X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
    return name;
  }
  void say_goodbye() { SSL_shutdown(session_.get()); }
  // Returns whether the server has sent close_notify, after which no more bytes follow.
  bool heard_goodbye() const { return (SSL_get_shutdown(session_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  // Sends bytes to the socket directly, unencrypted.
  void send_raw(const std::string& bytes) { ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

 private:
  ssize_t put(const char* bytes, size_t count) override {
    return SSL_write(session_.get(), bytes, static_cast<int>(count));
  }
  ssize_t take(char* room, size_t count) override { return SSL_read(session_.get(), room, static_cast<int>(count)); }

  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> session_{nullptr, SSL_free};
  bool secure_ = false;
};

}  // namespace specdec::deploy
