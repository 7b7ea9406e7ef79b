/*
 * The functions of OpenSSL that tls.c calls. On Linux the library is loaded
 * when TLS is first used: linked, it would double the time that a program takes
 * to start, and a machine without it could not run one.
 */
#ifndef RL_OPENSSL_H
#define RL_OPENSSL_H

#ifdef RL_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif
#include <stddef.h>

/* Loads OpenSSL. Returns 0, or a libuv error code, with a message in why. */
int rl_openssl_load(char *why, size_t size);

#if defined(RL_TLS) && defined(__linux__)

/* clang-format off */
#define RL_OPENSSL_FUNCTIONS(use) \
    use(ERR_clear_error) use(ERR_peek_error) use(ERR_reason_error_string) \
    use(SSL_CTX_ctrl) use(SSL_CTX_free) use(SSL_CTX_load_verify_locations) \
    use(SSL_CTX_new) use(SSL_CTX_set_default_verify_paths) \
    use(SSL_CTX_set_verify) use(SSL_CTX_use_PrivateKey_file) \
    use(SSL_CTX_use_certificate_chain_file) use(SSL_ctrl) \
    use(SSL_do_handshake) use(SSL_free) use(SSL_get0_param) \
    use(SSL_get_error) use(SSL_get_verify_result) use(SSL_new) use(SSL_read) \
    use(SSL_set_connect_state) use(SSL_set_fd) use(SSL_write) \
    use(TLS_client_method) use(X509_VERIFY_PARAM_set1_host) \
    use(X509_VERIFY_PARAM_set1_ip_asc) use(X509_VERIFY_PARAM_set_hostflags) \
    use(X509_get_default_cert_file) use(X509_get_default_cert_file_env) \
    use(X509_verify_cert_error_string)
/* clang-format on */

#define RL_OPENSSL_MEMBER(name) __typeof__(name) *name##_;
struct rl_openssl {
    RL_OPENSSL_FUNCTIONS(RL_OPENSSL_MEMBER)
};
#undef RL_OPENSSL_MEMBER

extern struct rl_openssl rl_openssl;

#define ERR_clear_error rl_openssl.ERR_clear_error_
#define ERR_peek_error rl_openssl.ERR_peek_error_
#define ERR_reason_error_string rl_openssl.ERR_reason_error_string_
#define SSL_CTX_ctrl rl_openssl.SSL_CTX_ctrl_
#define SSL_CTX_free rl_openssl.SSL_CTX_free_
#define SSL_CTX_load_verify_locations rl_openssl.SSL_CTX_load_verify_locations_
#define SSL_CTX_new rl_openssl.SSL_CTX_new_
#define SSL_CTX_set_default_verify_paths \
    rl_openssl.SSL_CTX_set_default_verify_paths_
#define SSL_CTX_set_verify rl_openssl.SSL_CTX_set_verify_
#define SSL_CTX_use_PrivateKey_file rl_openssl.SSL_CTX_use_PrivateKey_file_
#define SSL_CTX_use_certificate_chain_file \
    rl_openssl.SSL_CTX_use_certificate_chain_file_
#define SSL_ctrl rl_openssl.SSL_ctrl_
#define SSL_do_handshake rl_openssl.SSL_do_handshake_
#define SSL_free rl_openssl.SSL_free_
#define SSL_get0_param rl_openssl.SSL_get0_param_
#define SSL_get_error rl_openssl.SSL_get_error_
#define SSL_get_verify_result rl_openssl.SSL_get_verify_result_
#define SSL_new rl_openssl.SSL_new_
#define SSL_read rl_openssl.SSL_read_
#define SSL_set_connect_state rl_openssl.SSL_set_connect_state_
#define SSL_set_fd rl_openssl.SSL_set_fd_
#define SSL_write rl_openssl.SSL_write_
#define TLS_client_method rl_openssl.TLS_client_method_
#define X509_VERIFY_PARAM_set1_host rl_openssl.X509_VERIFY_PARAM_set1_host_
#define X509_VERIFY_PARAM_set1_ip_asc rl_openssl.X509_VERIFY_PARAM_set1_ip_asc_
#define X509_VERIFY_PARAM_set_hostflags \
    rl_openssl.X509_VERIFY_PARAM_set_hostflags_
#define X509_get_default_cert_file rl_openssl.X509_get_default_cert_file_
#define X509_get_default_cert_file_env \
    rl_openssl.X509_get_default_cert_file_env_
#define X509_verify_cert_error_string rl_openssl.X509_verify_cert_error_string_

#endif
#endif
