#include "trireme/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <tuple>

#include "trireme/core/error.h"
#include "trireme/net/bytes.h"

namespace trireme::net {

// The bytes, numbers little endian:
//
//   hello            "TRIREME" | version: 1 | nonce: 32
//   proof, verdict   kind: 1 | length: 2 | body
//   body of a proof  who | hmac: 32
//   of a verdict     who | sentence length: 2 | sentence | hmac: 32     (nothing if unproven)
//   who              job length: 2 | job | role length: 2 | role | rank: 4 | size: 4
//
// The HMAC covers a label that differs by direction (so that no proof can be sent back to its
// sender), both nonces (so that none can be used twice), the kind and the body before it.

namespace {

constexpr std::string_view kMagic = "TRIREME\x01";
constexpr size_t kNameBytes = 7;  // of the magic, before the version
constexpr size_t kNonceBytes = 32;
constexpr size_t kDigestBytes = std::tuple_size_v<Digest>;
constexpr size_t kHeaderBytes = 3;
constexpr size_t kMaxJobBytes = 256;
constexpr size_t kMaxRoleBytes = 32;
constexpr size_t kMaxSentenceBytes = 512;
constexpr size_t kMaxBodyBytes =
    2 + kMaxJobBytes + 2 + kMaxRoleBytes + 8 + 2 + kMaxSentenceBytes + kDigestBytes;

constexpr size_t kMaxProofBytes = 2 + kMaxJobBytes + 2 + kMaxRoleBytes + 8 + kDigestBytes;

constexpr char kProof = 'P';
constexpr char kWelcome = 'W';
constexpr char kRefused = 'R';
constexpr char kUnproven = 'U';

std::string fresh_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) != 1)
    throw Error("the system gives no random bytes, so no handshake can be made");
  return nonce;
}

void put_identity(std::string& out, const Identity& who) {
  put_text<uint16_t>(out, who.job);
  put_text<uint16_t>(out, who.role);
  put(out, static_cast<uint32_t>(who.rank));
  put(out, static_cast<uint32_t>(who.size));
}

Identity read_identity(ByteReader& reader) {
  Identity who;
  who.job = reader.text<uint16_t>();
  who.role = reader.text<uint16_t>();
  who.rank = static_cast<int>(reader.number<uint32_t>());
  who.size = static_cast<int>(reader.number<uint32_t>());
  if (who.job.size() > kMaxJobBytes || who.role.size() > kMaxRoleBytes)
    throw CommError("sent a job id or role that is too long");
  return who;
}

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// Takes constant time, so that the duration does not reveal where the two differ.
bool is_same(std::string_view claimed, const Digest& right) {
  return claimed.size() == right.size() &&
         CRYPTO_memcmp(claimed.data(), right.data(), right.size()) == 0;
}

/// A body split into the message and its proof.
struct SignedBody {
  std::string_view message;
  std::string_view proof;

  explicit SignedBody(std::string_view body) {
    if (body.size() < kDigestBytes) throw CommError("sent a message that ends too early");
    message = body.substr(0, body.size() - kDigestBytes);
    proof = body.substr(message.size());
  }
};

}  // namespace

Handshake::Handshake(Side side, Secret secret, Identity me, Admit admit)
    : side_(side),
      secret_(std::move(secret)),
      me_(std::move(me)),
      admit_(std::move(admit)),
      my_nonce_(fresh_nonce()),
      needed_(kMagic.size() + kNonceBytes) {
  core::check(me_.job.size() <= kMaxJobBytes, "job id '{}' has {} bytes; it may have {}", me_.job,
              me_.job.size(), kMaxJobBytes);
  core::check(me_.role.size() <= kMaxRoleBytes, "role '{}' has {} bytes; it may have {}", me_.role,
              me_.role.size(), kMaxRoleBytes);
  // The server stays silent until the client has sent the magic bytes.
  if (side_ == Side::Client) output_ = std::string(kMagic) + my_nonce_;
}

std::string Handshake::take_output() {
  return std::exchange(output_, {});
}

size_t Handshake::wanted() const {
  return state_ == State::Talking ? needed_ - input_.size() : 0;
}

void Handshake::feed(std::string_view bytes) {
  core::check(bytes.size() <= wanted(), "Handshake::feed: {} bytes, but it wants {}", bytes.size(),
              wanted());
  input_ += bytes;
  try {
    // Checked before it is complete: a stranger may send less than this and wait for an answer.
    if (next_input_ == NextInput::Hello) check_magic();
    if (state_ != State::Talking || input_.size() < needed_) return;
    switch (next_input_) {
      case NextInput::Hello: return on_hello();
      case NextInput::Header: return on_header();
      case NextInput::Body: return side_ == Side::Server ? on_proof() : on_verdict();
    }
  } catch (const CommError& error) {
    fail(error.what());
  }
}

void Handshake::fail(std::string sentence) {
  state_ = State::Failed;
  error_ = std::move(sentence);
  input_.clear();
}

void Handshake::check_magic() {
  const size_t bytes = std::min(input_.size(), kMagic.size());
  if (input_.compare(0, bytes, kMagic, 0, bytes) == 0) return;
  if (input_.compare(0, std::min(bytes, kNameBytes), kMagic, 0, std::min(bytes, kNameBytes)) == 0) {
    // Tell the other version ours, so that it can report the same.
    if (side_ == Side::Server) output_ = std::string(kMagic) + my_nonce_;
    return fail(
        fmt::format("speaks version {} of the protocol, this is version {}; run the same "
                    "build of trireme everywhere",
                    static_cast<int>(static_cast<uint8_t>(input_[kNameBytes])),
                    static_cast<int>(kMagic[kNameBytes])));
  }
  fail(fmt::format("does not speak trireme (its first bytes are \"{}\"); check the address",
                   printable(input_)));
}

void Handshake::on_hello() {
  peer_nonce_ = input_.substr(kMagic.size());
  if (side_ == Side::Server) {
    output_ = std::string(kMagic) + my_nonce_;
  } else {
    std::string message;
    put_identity(message, me_);
    const Digest proof = proof_of(Side::Client, kProof + message);
    message += view(proof);
    output_ = kProof;
    put_text<uint16_t>(output_, message);
  }
  input_.clear();
  next_input_ = NextInput::Header;
  needed_ = kHeaderBytes;
}

void Handshake::on_header() {
  kind_ = input_[0];
  const bool is_known = side_ == Side::Server
                            ? kind_ == kProof
                            : kind_ == kWelcome || kind_ == kRefused || kind_ == kUnproven;
  if (!is_known) throw CommError("sent something that is not part of a handshake");
  needed_ = ByteReader(std::string_view(input_).substr(1)).number<uint16_t>();
  const size_t most = side_ == Side::Server ? kMaxProofBytes : kMaxBodyBytes;
  if (needed_ > most)
    throw CommError(
        fmt::format("announces {} bytes in the handshake; the limit is {}", needed_, most));
  input_.clear();
  input_.reserve(needed_);
  next_input_ = NextInput::Body;
  if (kind_ == kUnproven)
    fail(
        fmt::format("does not accept our proof: the secret or the job id is not the one of its "
                    "job (we are job '{}'); start all with the same TRIREME_SECRET or "
                    "TRIREME_SECRET_FILE, and the same job id",
                    me_.job));
  else if (needed_ < kDigestBytes)
    throw CommError("sent a message that ends too early");
}

void Handshake::on_proof() {
  const SignedBody body(input_);
  ByteReader reader(body.message);
  const Identity claimed = read_identity(reader);
  const Digest right = proof_of(Side::Client, kProof + std::string(body.message));
  if (!is_same(body.proof, right)) {
    output_ = kUnproven;
    put(output_, uint16_t{0});
    return fail(fmt::format(
        "cannot prove that it belongs to job '{}' (it claims to be {} {} of "
        "job '{}'): its secret or job id is different",
        printable(me_.job), printable(claimed.role), claimed.rank, printable(claimed.job)));
  }
  peer_ = claimed;
  const std::string sentence = refusal().substr(0, kMaxSentenceBytes);
  reply(sentence.empty() ? kWelcome : kRefused, sentence);
  if (!sentence.empty()) return fail(fmt::format("was refused: {}", sentence));
  state_ = State::Proven;
}

std::string Handshake::refusal() const {
  if (peer_.job != me_.job)
    return fmt::format(
        "this is job '{}', you belong to job '{}': you are a rank of an earlier run, or have "
        "the address of another job",
        me_.job, peer_.job);
  if (peer_.size != me_.size)
    return fmt::format("this is a world of {} ranks, {} {} was started for a world of {}", me_.size,
                       peer_.role, peer_.rank, peer_.size);
  if (peer_.rank < 0 || peer_.rank >= peer_.size)
    return fmt::format("{} {} in a world of {}: ranks go from 0 to {}", peer_.role, peer_.rank,
                       peer_.size, peer_.size - 1);
  return admit_ ? admit_(peer_) : std::string();
}

void Handshake::reply(char verdict, const std::string& sentence) {
  std::string message;
  put_identity(message, me_);
  put_text<uint16_t>(message, sentence);
  const Digest proof = proof_of(Side::Server, verdict + message);
  message += view(proof);
  output_ = verdict;
  put_text<uint16_t>(output_, message);
}

void Handshake::on_verdict() {
  const SignedBody body(input_);
  const Digest right = proof_of(Side::Server, kind_ + std::string(body.message));
  if (!is_same(body.proof, right))
    return fail(
        fmt::format("cannot prove that it knows the secret of job '{}', so we tell it "
                    "nothing; check the address, the secret and the job id",
                    me_.job));
  ByteReader reader(body.message);
  peer_ = read_identity(reader);
  const std::string sentence(reader.text<uint16_t>());
  if (kind_ == kRefused) return fail(fmt::format("refuses us: {}", sentence));
  state_ = State::Proven;
}

Digest Handshake::proof_of(Side prover, std::string_view message) const {
  const bool am_client = side_ == Side::Client;
  std::string all = prover == Side::Client ? "trireme client" : "trireme server";
  all += am_client ? my_nonce_ : peer_nonce_;
  all += am_client ? peer_nonce_ : my_nonce_;
  all += message;
  return hmac_sha256(secret_, all);
}

}  // namespace trireme::net
