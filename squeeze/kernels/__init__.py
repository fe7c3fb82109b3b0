"""Operations on accelerators: each a folder of a definition in plain torch and a Triton kernel that equals it."""
