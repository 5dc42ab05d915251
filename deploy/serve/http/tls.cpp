#include "deploy/serve/http/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using PrivateKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorKind::kConfig, file.string() + ": " + what);
}

Bio reader_of(const std::string& bytes) {
  return {BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())), BIO_free};
}

// A callback that gives no passphrase. OpenSSL's default callback would ask for one on the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

void use_certificate(SSL_CTX& context, const std::filesystem::path& file) {
  const std::string bytes = read_file(file, kMaxPemBytes, ErrorKind::kConfig);
  const Bio pem = reader_of(bytes);
  const Certificate own(PEM_read_bio_X509_AUX(pem.get(), nullptr, no_passphrase, nullptr), X509_free);
  if (!own) refuse_file(file, "no certificate found: --tls-cert expects one in PEM (-----BEGIN CERTIFICATE-----)");
  if (SSL_CTX_use_certificate(&context, own.get()) != 1)
    refuse_file(file, "this certificate is not accepted: use RSA of at least 2048 bits, ECDSA or Ed25519");
  for (;;) {
    Certificate next(PEM_read_bio_X509(pem.get(), nullptr, no_passphrase, nullptr), X509_free);
    if (!next) break;
    if (SSL_CTX_add0_chain_cert(&context, next.get()) != 1) refuse_file(file, "a further certificate is not accepted");
    (void)next.release();  // the context owns the certificate now
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
    refuse_file(file, "a further certificate is malformed");
}

void use_key(SSL_CTX& context, const std::filesystem::path& file, const std::filesystem::path& certificate) {
  std::string bytes = read_file(file, kMaxPemBytes, ErrorKind::kConfig);
  const PrivateKey key(PEM_read_bio_PrivateKey(reader_of(bytes).get(), nullptr, no_passphrase, nullptr), EVP_PKEY_free);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (!key) refuse_file(file, "no private key found: --tls-key expects one in PEM, not encrypted");
  const X509* const own = SSL_CTX_get0_certificate(&context);
  if (X509_check_private_key(own, key.get()) != 1)
    refuse_file(file, "this key does not belong to the certificate in " + certificate.string());
  if (SSL_CTX_use_PrivateKey(&context, key.get()) != 1) refuse_file(file, "this private key is not accepted");
}

std::shared_ptr<SSL_CTX> load(const std::filesystem::path& certificate, const std::filesystem::path& key) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1)
    throw Error(ErrorKind::kInternal, "TLS could not be started (OpenSSL)");
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);  // clients resume with tickets instead
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // Without this mode a TLS record without data ends the read call, so that a flood of such records does not block a
  // thread.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  use_certificate(*context, certificate);
  use_key(*context, key, certificate);
  ERR_clear_error();
  return context;
}

}  // namespace

void TlsSessionDeleter::operator()(ssl_st* session) const { SSL_free(session); }

TlsIdentity::TlsIdentity(std::filesystem::path certificate, std::filesystem::path key)
    : certificate_(std::move(certificate)), key_(std::move(key)), context_(load(certificate_, key_)) {}

void TlsIdentity::reload() { context_.set(load(certificate_, key_)); }

TlsSession TlsIdentity::session(int socket) const {
  const std::shared_ptr<SSL_CTX> context = context_.get();
  TlsSession session(SSL_new(context.get()));
  if (!session || SSL_set_fd(session.get(), socket) != 1)
    throw Error(ErrorKind::kInternal, "a TLS connection could not be started (OpenSSL)");
  SSL_set_accept_state(session.get());
  return session;
}

}  // namespace specdec::deploy
