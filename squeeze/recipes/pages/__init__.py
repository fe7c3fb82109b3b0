"""What all pages share: how they are put together, their colours and type, and the script that every one needs."""
