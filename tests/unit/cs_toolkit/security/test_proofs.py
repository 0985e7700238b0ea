from cs_toolkit.security.proofs import is_proof, new_nonce, prove


def test_a_proof_holds_for_one_secret_one_side_and_its_nonces() -> None:
    nonces = new_nonce(), new_nonce()
    proof = prove("secret", "client", *nonces)
    assert is_proof(proof, prove("secret", "client", *nonces))
    for other in (
        prove("other", "client", *nonces),
        prove("secret", "server", *nonces),
        prove("secret", "client", *nonces[::-1]),
        prove("secret", "client", "".join(nonces)),
        "",
        "\udcffö",
        None,
        7,
    ):
        assert not is_proof(other, proof)
